package api

import "github.com/ingotmetal/ingot/internal/apitypes"

// BMCCheck and the other bodies that clients decode are declared in package apitypes, so that clients need not import the server.
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
