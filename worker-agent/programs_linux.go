package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// programDirs are the folders of the programs that the agent's system contains.
var programDirs = []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"}

// Format implements Formatter with a program of the agent's system. No shell reads the arguments.
func (h HostFilesystems) Format(ctx context.Context, program string, args []string, log func(string)) (int, error) {
	file := ""
	for _, dir := range programDirs {
		p := filepath.Join(dir, program)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			file = p
			break
		}
	}
	if file == "" {
		return 0, fmt.Errorf("starting %s: the agent's system does not have it: build it again with deploy/agentos/build.sh", program)
	}

	if h.Children != nil {
		h.Children.Lock()
		defer h.Children.Unlock()
	}
	cmd := exec.CommandContext(ctx, file, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/sbin:/usr/bin:/bin", "LC_ALL=C", "HOME=/"}
	cmd.WaitDelay = 5 * time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("starting %s: %w", program, err)
	}

	lines := bufio.NewScanner(out)
	for lines.Scan() {
		log(lines.Text())
	}

	var exit *exec.ExitError
	if err = cmd.Wait(); errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exit.ExitCode(), err
	}
	if err != nil {
		return 0, fmt.Errorf("running %s: %w", program, err)
	}
	return 0, nil
}
