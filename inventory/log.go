package inventory

// Keys of log lines. They connect the lines of one run, from all parts of the server; see docs/monitoring.md.
const (
	LogMachine = "machine"
	LogRun     = "run"
	LogEpoch   = "epoch"
	LogBoot    = "boot"
	LogPhase   = "phase"
)

// LogKeys returns the keys and values for the log lines of o's run. boot is the number of a boot of this run; if it is 0, the lines contain
// no boot.
func (o Owner) LogKeys(boot int) []any {
	keys := []any{LogMachine, o.Machine}
	if o.Run != "" {
		keys = append(keys, LogRun, o.Run)
	}
	if o.Epoch != 0 {
		keys = append(keys, LogEpoch, o.Epoch)
	}
	if boot != 0 {
		keys = append(keys, LogBoot, boot)
	}
	return keys
}

// LogKeys returns the keys and values for log lines about w.
func (w Workflow) LogKeys() []any {
	keys := Owner{Machine: w.Machine, Run: w.Run, Epoch: w.Epoch}.LogKeys(0)
	if w.Phase != "" {
		keys = append(keys, LogPhase, w.Phase)
	}
	return keys
}

// LogKeys returns the keys and values for a log line about e.
func (e Event) LogKeys() []any {
	return Owner{Machine: e.Machine, Run: e.Run, Epoch: e.Epoch}.LogKeys(e.Boot)
}
