package machinefile

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

func TestForeign(t *testing.T) {
	for text, want := range map[string]string{
		"hostname,bmc_ip,bmc_username,bmc_password,mac,ip_address,netmask,gateway,nameservers,labels,disk\neksa-1,10.0.9.1,a,b,02:00:00:00:00:01,10.0.0.11,255.255.255.0,10.0.0.1,10.0.0.1,type=cp,/dev/sda\n": "EKS Anywhere hardware CSV",
		"\ufeff\"hostname\", mac ,ip_address\r\n":                                              "EKS Anywhere hardware CSV",
		"apiVersion: tinkerbell.org/v1alpha1\nkind: Hardware\nspec: {}\n":                      "Tinkerbell document of kind Hardware",
		"apiVersion: tinkerbell.org/v1alpha1\nkind: Template\nspec: {data: x}\n":               "spec.data",
		"apiVersion: tinkerbell.org/v1alpha1\nkind: Workflow\n":                                "ingot machine provision",
		"kind: Machine\napiVersion: bmc.tinkerbell.org/v1alpha1\n":                             "kind Machine",
		"{\"id\": \"x\", \"network\": {\"interfaces\": [{\"dhcp\": {\"mac\": \"02:00\"}}]}}\n": "first Tinkerbell",
		"apiVersion: v1\nkind: Secret\n":                                                       "kind Secret",
	} {
		err := Foreign("f", []byte(text))
		require.ErrorIs(t, err, inventory.ErrInvalid, text)
		require.ErrorContains(t, err, want)
		require.ErrorContains(t, err, "this version cannot import it")
		require.ErrorContains(t, err, "ingot import FILE")
		require.ErrorContains(t, err, "f:1")
	}
	for _, text := range []string{
		"", "name: a\ninterfaces: [{mac: \"02:00:00:00:00:01\"}]\n", "\tx", "version: \"0.1\"\nname: hostname,mac\n", "type: Inspect\ninput: {machine: a}\n",
	} {
		require.NoError(t, Foreign("f", []byte(text)), text)
	}
	require.Len(
		t,
		Foreign(
			"f",
			[]byte("apiVersion: tinkerbell.org/v1alpha1\nkind: Hardware\n---\napiVersion: bmc.tinkerbell.org/v1alpha1\nkind: Machine\n"),
		),
		2,
	)
}
