package bootsvc

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ingotmetal/ingot/internal/host/clock"
	"github.com/ingotmetal/ingot/inventory"
)

// The boot of an installer is spent when its last payload is delivered. Recording this is retried for spendFor, because
// a netboot window closes within this time unless its run renews it.
const (
	firstSpend   = 250 * time.Millisecond // before the first retry
	longestSpend = 15 * time.Second       // between two retries
	spendFor     = 30 * time.Minute
	maxUnspent   = 256 // boots in the queue for retries
)

// unspent is a boot that is already spent, but could not be recorded as spent yet.
type unspent struct {
	Decision
	payload string
}

// spender records that boots are spent, with retries.
type spender struct {
	cfg     *Config
	unspent chan unspent // waiting for spendLate
}

// spend records that d's boot is spent. Until this is recorded, a machine that boots from the network first would boot
// the installer again. ctx must not be the context of the request, because the machine may already have disconnected.
// If recording fails, spendLate retries it.
func (q *spender) spend(ctx context.Context, d Decision, payload string) {
	u := unspent{d, payload}
	if q.spendOnce(ctx, u) {
		return
	}
	select {
	case q.unspent <- u:
	default:
		q.cfg.Log.With(d.logKeys()...).Error("cannot record that a boot is spent, because too many boots wait to be recorded")
	}
}

// spendOnce records that a boot is spent. It returns false if the caller must retry.
func (q *spender) spendOnce(ctx context.Context, u unspent) bool {
	err := q.cfg.Installers.SpendBoot(ctx, u.Owner, u.Boot, u.payload)
	log := q.cfg.Log.With(u.logKeys()...)
	switch {
	case err == nil:
		log.Info("the last payload of an installer was delivered", "payload", u.payload)
	case errors.Is(err, inventory.ErrFenced):
		log.Error("cannot record that a boot is spent", "error", err)
	default:
		log.Warn("cannot record that a boot is spent; trying again later", "error", err)
		return false
	}
	return true
}

// spendLate retries what spend could not record. After ctx ends, it retries each waiting boot once more and returns
// nil.
func (q *spender) spendLate(ctx context.Context) error {
	var waiting sync.WaitGroup
	defer waiting.Wait()
	again := func(u unspent) {
		waiting.Go(func() {
			defer q.cfg.Guard.Recover("a delivered payload")
			q.spendAgain(ctx, u)
		})
	}
	for {
		select {
		case u := <-q.unspent:
			again(u)
		case <-ctx.Done():
			for len(q.unspent) > 0 {
				again(<-q.unspent)
			}
			return nil
		}
	}
}

func (q *spender) spendAgain(ctx context.Context, u unspent) {
	for wait, waited := firstSpend, time.Duration(0); waited <= spendFor; wait = min(2*wait, longestSpend) {
		if clock.Sleep(ctx, wait) != nil {
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
			defer cancel()
			q.spendOnce(last, u)
			return
		}
		if q.spendOnce(ctx, u) {
			return
		}
		waited += wait
	}
	q.cfg.Log.With(u.logKeys()...).Error("cannot record that a boot is spent; giving up after the last attempt")
}
