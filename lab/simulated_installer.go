package lab

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// runInstaller runs on a simulated machine if the kernel is not the agent's. It is a small stand-in
// for Harvester's installer with the same kernel arguments, configuration and webhooks. It fetches
// the URL of root=live:, requests harvester.install.config_url= up to 30 times, writes
// Spec.Installs to the disk if install.device names it by its serial number, calls the webhooks,
// and restarts the machine.
func (l *life) runInstaller(cmdline string) ending {
	if l.stage(StageInstaller) != nil {
		return cutOff
	}
	l.say("LAB-SIM installer: %s", cmdline)
	if err := l.lease(l.ctx, "", 2*time.Second, -1); err != nil {
		return cutOff
	}
	words := map[string]string{}
	for _, w := range strings.Fields(cmdline) {
		key, value, _ := strings.Cut(w, "=")
		words[key] = value
	}
	if from, ok := strings.CutPrefix(words["root"], "live:"); ok {
		for try := 1; ; try++ { // curl --retry, in dracut
			n, err := l.get(from, io.Discard)
			if err == nil {
				l.say("LAB-SIM installer: root file system of %d bytes", n)
				break
			}
			if try == 10 || !l.sleep(2*time.Second) {
				return l.stuck(err) // dracut starts its shell
			}
		}
	}
	cfg, err := l.installerConfig(words["harvester.install.config_url"])
	if err != nil {
		return l.stuck(err)
	}
	l.hook(cfg, "STARTED", nil)
	if l.stage(StageWrite) != nil {
		return cutOff
	}
	err = l.install(cfg)
	if l.ctx.Err() != nil {
		return cutOff
	}
	if err != nil {
		l.hook(cfg, "FAILED", err)
		return l.stuck(err)
	}
	l.say("LAB-SIM installer: installed")
	l.hook(cfg, "SUCCEEDED", nil)
	return rebooted
}

// stuck is an installer that waits for input at its console.
func (l *life) stuck(err error) ending {
	l.say("LAB-SIM installer: stuck: %v", err)
	<-l.ctx.Done()
	return cutOff
}

// installerConfig is the part of Harvester's configuration that the stand-in uses.
type installerConfig struct {
	Install struct {
		Device   string `yaml:"device"`
		Webhooks []struct {
			Event  string `yaml:"event"`
			Method string `yaml:"method"`
			URL    string `yaml:"url"`
		} `yaml:"webhooks"`
	} `yaml:"install"`
}

func (l *life) installerConfig(from string) (cfg installerConfig, err error) {
	if from == "" {
		return cfg, errors.New("no harvester.install.config_url")
	}
	for try := 1; ; try++ {
		var text strings.Builder
		if _, err = l.get(from, &text); err == nil {
			l.say("LAB-SIM installer: configuration of %d bytes", text.Len())
			return cfg, yaml.Unmarshal([]byte(text.String()), &cfg)
		}
		if try == 30 || !l.sleep(time.Second) {
			return cfg, fmt.Errorf("fetching the configuration: %w", err)
		}
	}
}

// install writes the image to the disk that the configuration names.
func (l *life) install(cfg installerConfig) error {
	if serial := l.sim.m.spec.DiskSerial; !strings.HasSuffix(cfg.Install.Device, serial) {
		return fmt.Errorf("there is no disk %s", cfg.Install.Device)
	}
	src, err := os.Open(l.sim.m.spec.Installs)
	if err != nil {
		return err
	}
	defer src.Close() // opened only for reading
	dst, err := os.OpenFile(l.sim.m.DiskPath(), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}

// hook calls the webhooks of an event, each until it is answered, at most 60 times.
func (l *life) hook(cfg installerConfig, event string, failure error) {
	client := l.http()
	defer client.CloseIdleConnections()
	body := url.Values{"event": {event}}
	if failure != nil {
		body.Set("message", failure.Error())
	}
	for _, w := range cfg.Install.Webhooks {
		if !strings.EqualFold(w.Event, event) {
			continue
		}
		method := w.Method
		if method == "" {
			method = http.MethodGet
		}
		for try := 1; try <= 60; try++ {
			_, status := ask(l.ctx, client, method, w.URL, body.Encode())
			l.say("LAB-SIM installer: webhook %s try=%d answer=%d", event, try, status)
			if status/100 == 2 || !l.sleep(2*time.Second) {
				break
			}
		}
	}
}
