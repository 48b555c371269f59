package activities

import (
	"fmt"
	"slices"

	"github.com/ingotmetal/ingot/action"
	"github.com/ingotmetal/ingot/inventory"
)

// mayUpload returns an error if an action sends the content of a disk to a host that is not in UploadHosts
// (security S59). It is called twice: when a run is planned, before a machine is touched, and again before an order
// is signed, because the configuration may have changed and references have been resolved since. The agent does not
// check the host, because the signature of the order shows that the upload is permitted.
func (s Site) mayUpload(actions ...action.Action) error {
	var problems inventory.Problems
	for _, x := range actions {
		target := x.Upload()
		if target == "" {
			continue
		}
		host, err := action.UploadHost(target)
		if err == nil && !slices.Contains(s.UploadHosts, host) {
			err = fmt.Errorf("the host %q must not receive the content of disks", host)
		}
		if err != nil {
			native, _ := x.Native()
			problems.Add(fmt.Sprintf("task %s, action %s: %s", x.Task, x.Name, action.Describe(native).Upload),
				"add the host to images.upload_hosts of the configuration and start the server again, or name a listed host",
				"%v", err)
		}
	}
	return problems.Err()
}
