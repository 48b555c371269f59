package main

import "context"

func harvesterMain(context.Context, *host) error { return nil }
