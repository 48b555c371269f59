package workflows

import "go.temporal.io/sdk/workflow"

// Reprovision wipes the machine's disk and installs its template on it, in one
// boot: what a disaster left there is gone before anything new is written. It
// is Provision otherwise, and asks about a disk that Ingot has not written, too.
// Its id is machine/<machine>.
func Reprovision(ctx workflow.Context, in ProvisionInput) (Outcome, error) {
	return provisionAs(ctx, ReprovisionType, in, true)
}
