package api

import "github.com/ingotmetal/ingot/internal/apitypes"

// The bodies that clients decode too are declared in package apitypes, which needs no server.
type (
	BMCCheck        = apitypes.BMCCheck
	Installation    = apitypes.Installation
	InventoryStatus = apitypes.InventoryStatus
	MachineView     = apitypes.MachineView
	NetbootStatus   = apitypes.NetbootStatus
	NotifyStatus    = apitypes.NotifyStatus
	ReserveStatus   = apitypes.ReserveStatus
	RestoredStatus  = apitypes.RestoredStatus
	SecretsStatus   = apitypes.SecretsStatus
	SpaceStatus     = apitypes.SpaceStatus
	Started         = apitypes.Started
	Status          = apitypes.Status
	TemporalStatus  = apitypes.TemporalStatus
	WaitingStatus   = apitypes.WaitingStatus
)
