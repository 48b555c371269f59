package template

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// pair returns the machines of these tests.
func pair() (server, client inventory.Machine) {
	server, client = machine(), machine()
	server.Name, client.Name = "server", "client"
	server.Interfaces = []inventory.Interface{{MAC: "02:00:00:00:00:a1"}, {MAC: "02:00:00:00:00:a2"}, {MAC: "02:00:00:00:00:a3"}}
	client.Interfaces = []inventory.Interface{{MAC: "02:00:00:00:00:b1"}}
	return server, client
}

// tasksOf returns a template with one task for each worker. The last action of each task is the one after =, or noop.
func tasksOf(workers ...string) string {
	var b strings.Builder
	b.WriteString("version: \"0.1\"\nname: t\ntasks:\n")
	for n, w := range workers {
		worker, last, _ := strings.Cut(w, "=")
		if last == "" {
			last = "noop"
		}
		fmt.Fprintf(&b, "- {name: t%d, worker: \"%s\", actions: [{name: first, image: noop}, {name: last, image: %s}]}\n", n, worker, last)
	}
	return b.String()
}

const (
	one, two = "{{.device_1}}", "{{.device_2}}"
)

func TestTasksOfSeveralMachines(t *testing.T) {
	server, client := pair()
	devices := map[string]string{"device_1": "02-00-00-00-00-A1", "device_2": "client"}
	render := func(own, other inventory.Machine, src string) Rendered {
		r, err := Render(t.Context(), "t", src, Data{Machine: own, Others: []inventory.Machine{other}, HardwareMap: devices})
		require.NoError(t, err)
		return r
	}
	names := func(r Rendered) (out []string) {
		for _, a := range r.Actions {
			out = append(out, a.Task+"/"+a.Name)
		}
		return out
	}

	src := tasksOf(one, one, two, two+"=reboot", one)
	r := render(server, client, src)
	require.Equal(t, []string{"t0/first", "t0/last", "t1/first", "t1/last", "t4/first", "t4/last", "t4/reboot"}, names(r))
	require.Equal(t, []inventory.Turn{{Task: "t4", Machine: "client", After: "t3"}}, r.Turns)
	r = render(client, server, src)
	require.Equal(t, []string{"t2/first", "t2/last", "t3/first", "t3/last"}, names(r))
	require.Equal(t, []inventory.Turn{{Task: "t2", Machine: "server", After: "t1"}}, r.Turns)

	// Each machine has its own disk.
	src = strings.ReplaceAll(tasksOf(one+"=wipe", two+"=wipe"), "image: wipe}", "image: wipe, environment: {BLOCK_DEVICE: /dev/sdN}}")
	src = strings.Replace(strings.Replace(src, "sdN", "sda", 1), "sdN", "sdb", 1)
	server.Disks, client.Disks = nil, nil
	require.Equal(t, "/dev/sda", render(server, client, src).DiskAlias)
	require.Equal(t, "/dev/sdb", render(client, server, src).DiskAlias)
}

// TestDeviceOfTheSameMachine: without a hardware map, device_N is the N-th interface of the machine, so both workers are the same.
func TestDeviceOfTheSameMachine(t *testing.T) {
	server, _ := pair()
	r, err := Render(t.Context(), "t", tasksOf(one, two, ""), Data{Machine: server})
	require.NoError(t, err)
	require.Len(t, r.Actions, 7)
	require.Empty(t, r.Turns)
	_, err = Render(t.Context(), "t", tasksOf(one+"=reboot", two), Data{Machine: server})
	require.ErrorContains(t, err, `t:4: tasks[0].actions[1].image: "reboot" takes the machine away from the agent`)
}

func TestWorkerProblems(t *testing.T) {
	server, client := pair()
	devices := map[string]string{"device_1": "server", "device_2": "client"}
	together := Data{Machine: server, Others: []inventory.Machine{client}, HardwareMap: devices}
	alone := Data{Machine: server, HardwareMap: devices}
	for _, c := range []struct {
		src, want string
		d         Data
	}{
		{tasksOf(one, two), `t:5: tasks[1].worker: "client" is neither a MAC address nor the name of machine "server"`, alone},
		{tasksOf(one, "02:00:00:00:00:c1"), `t:5: tasks[1].worker: "02:00:00:00:00:c1" is neither`, together},
		{tasksOf(one, two, "{{.device_3}}"), `t:6: {{.device_3}}: map has no entry for key "device_3"`, together},
		{tasksOf(one, "", two), `t:5: tasks[1].worker: task "t1" does not say which machine carries it out`, together},
		{tasksOf(two, two), `tasks: no task is for machine "server" (leave the machine out of the hardware map)`, together},
		{
			installing + "tasks: [{name: t, worker: \"{{.device_1}}\", actions: [{name: a, image: noop}]}]\n",
			`installer: boots one machine, but the hardware map names 2`, together,
		},
	} {
		_, err := Render(t.Context(), "t", c.src, c.d)
		require.ErrorIs(t, err, inventory.ErrInvalid, c.src)
		require.ErrorContains(t, err, c.want)
	}
}
