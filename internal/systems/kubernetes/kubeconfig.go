package kubernetes

import (
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/ingotmetal/ingot/internal/systems/endpoint"
	"github.com/ingotmetal/ingot/inventory"
)

// kubeconfigFile holds the parts of a kubeconfig that this package reads.
type kubeconfigFile struct {
	Current  string `yaml:"current-context"`
	Contexts []struct {
		Name    string `yaml:"name"`
		Context struct {
			Cluster string `yaml:"cluster"`
			User    string `yaml:"user"`
		} `yaml:"context"`
	} `yaml:"contexts"`
	Clusters []struct {
		Name    string        `yaml:"name"`
		Cluster configCluster `yaml:"cluster"`
	} `yaml:"clusters"`
	Users []struct {
		Name string     `yaml:"name"`
		User configUser `yaml:"user"`
	} `yaml:"users"`
}

type configCluster struct {
	Server     string `yaml:"server"`
	CA         string `yaml:"certificate-authority-data"`
	ServerName string `yaml:"tls-server-name"`
}

type configUser struct {
	Certificate string `yaml:"client-certificate-data"`
	Key         string `yaml:"client-key-data"`
	Token       string `yaml:"token"`
}

// open returns a connection for the current context of a kubeconfig. Errors of the parser are left out of its errors, because they may
// quote the kubeconfig.
func open(kubeconfig inventory.Secret) (*server, error) {
	cluster, user, err := currentContext(kubeconfig)
	if err != nil {
		return nil, invalid(err)
	}
	ca, err := base64.StdEncoding.DecodeString(cluster.CA)
	if err != nil || len(ca) == 0 {
		return nil, invalid(errors.New("the cluster has no certificate-authority-data"))
	}
	certificates, err := user.certificates()
	if err != nil {
		return nil, invalid(err)
	}

	c, err := endpoint.Open(inventory.Endpoint{URL: cluster.Server, CA: string(ca)}, func(c *tls.Config) {
		c.ServerName, c.Certificates = cluster.ServerName, certificates
	})
	if err != nil {
		return nil, err
	}
	return &server{
		api: c, address: cluster.Server, token: inventory.NewSecret(user.Token), kinds: map[string][]resource{},
	}, nil
}

func invalid(err error) error {
	return fmt.Errorf("reading the kubeconfig: %w: %w", err, inventory.ErrInvalid)
}

// currentContext returns the cluster and the user of the current context.
func currentContext(kubeconfig inventory.Secret) (cluster configCluster, user configUser, err error) {
	var f kubeconfigFile
	if yaml.Unmarshal([]byte(kubeconfig.Reveal()), &f) != nil {
		return cluster, user, errors.New("it is not YAML")
	}
	for _, context := range f.Contexts {
		if context.Name != f.Current {
			continue
		}
		for _, c := range f.Clusters {
			if c.Name == context.Context.Cluster {
				cluster = c.Cluster
			}
		}
		for _, u := range f.Users {
			if u.Name == context.Context.User {
				user = u.User
			}
		}
	}
	if cluster == (configCluster{}) {
		return cluster, user, errors.New("current-context selects none of the clusters in the kubeconfig")
	}
	if user.Token == "" && user.Certificate == "" {
		return cluster, user, errors.New("current-context selects no user with a certificate or a token")
	}
	return cluster, user, nil
}

// certificates returns the user's client certificate, if there is one.
func (u configUser) certificates() ([]tls.Certificate, error) {
	if u.Certificate == "" {
		return nil, nil
	}
	cert, certErr := base64.StdEncoding.DecodeString(u.Certificate)
	key, keyErr := base64.StdEncoding.DecodeString(u.Key)
	if certErr != nil || keyErr != nil {
		return nil, errors.New("the user's certificate or key is not base64")
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, errors.New("the user's certificate and key do not belong together")
	}
	return []tls.Certificate{pair}, nil
}
