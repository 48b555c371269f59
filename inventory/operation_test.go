package inventory

import (
	"testing"
	"time"
)

// What a step has worked leaves out each time in which an operator was awaited.
func TestWaitingIsNoWork(t *testing.T) {
	began := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	at := func(minutes int) time.Time { return began.Add(time.Duration(minutes) * time.Minute) }
	var s OperationStep
	worked := func(minute, want int) {
		t.Helper()
		if got := s.Worked(at(minute)); got != time.Duration(want)*time.Minute {
			t.Errorf("at minute %d it has worked %s, want %d minutes", minute, got, want)
		}
	}
	worked(10, 0)
	s.Since, s.State = at(0), StepRunning
	worked(10, 10)
	s.Wait(at(10))
	s.Wait(at(40)) // it asks something else
	worked(60, 10)
	s.Resume(at(60))
	s.Resume(at(70))
	s.State = StepRunning
	worked(65, 15)
	s.Wait(at(70))
	s.Resume(at(100))
	s.State, s.Ended = StepDone, at(105)
	worked(500, 25)
}
