package tracing

import (
	"go.opentelemetry.io/otel/attribute"

	"github.com/ingotmetal/ingot/inventory"
)

// Keys of attributes: "ingot." and the name of the same value in the log.
const (
	keyMachine = attribute.Key("ingot." + inventory.LogMachine)
	keyRun     = attribute.Key("ingot." + inventory.LogRun)
	keyEpoch   = attribute.Key("ingot." + inventory.LogEpoch)
	keyBoot    = attribute.Key("ingot." + inventory.LogBoot)
	keyPhase   = attribute.Key("ingot." + inventory.LogPhase)
)

// Keys that Temporal's SDK uses.
const (
	keyWorkflow    = attribute.Key("temporalWorkflowID")
	keyTemporalRun = attribute.Key("temporalRunID")
)

// ownerKeys returns the attributes of a span that belongs to a run. Values that are zero are left out.
func ownerKeys(o inventory.Owner, boot int) []attribute.KeyValue {
	out := []attribute.KeyValue{keyRun.String(o.Run)}
	if o.Machine != "" {
		out = append(out, keyMachine.String(o.Machine))
	}
	if o.Epoch != 0 {
		out = append(out, keyEpoch.Int64(o.Epoch))
	}
	if boot != 0 {
		out = append(out, keyBoot.Int(boot))
	}
	return out
}
