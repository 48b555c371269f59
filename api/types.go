package api

import "github.com/ingotmetal/ingot/internal/apitypes"

// The bodies that clients decode, too, are declared in package apitypes, so that clients need not import the server.

type (
	// BMCCheck is apitypes.BMCCheck.
	BMCCheck = apitypes.BMCCheck
	// Installation is apitypes.Installation.
	Installation = apitypes.Installation
	// InventoryStatus is apitypes.InventoryStatus.
	InventoryStatus = apitypes.InventoryStatus
	// MachineView is apitypes.MachineView.
	MachineView = apitypes.MachineView
	// NetbootStatus is apitypes.NetbootStatus.
	NetbootStatus = apitypes.NetbootStatus
	// NotifyStatus is apitypes.NotifyStatus.
	NotifyStatus = apitypes.NotifyStatus
	// ReserveStatus is apitypes.ReserveStatus.
	ReserveStatus = apitypes.ReserveStatus
	// RestoredStatus is apitypes.RestoredStatus.
	RestoredStatus = apitypes.RestoredStatus
	// SecretsStatus is apitypes.SecretsStatus.
	SecretsStatus = apitypes.SecretsStatus
	// SpaceStatus is apitypes.SpaceStatus.
	SpaceStatus = apitypes.SpaceStatus
	// Started is apitypes.Started.
	Started = apitypes.Started
	// Status is apitypes.Status.
	Status = apitypes.Status
	// TemporalStatus is apitypes.TemporalStatus.
	TemporalStatus = apitypes.TemporalStatus
	// WaitingStatus is apitypes.WaitingStatus.
	WaitingStatus = apitypes.WaitingStatus
)
