package main

import "context"

func vyosMain(context.Context, *host) error { return nil }
