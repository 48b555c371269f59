package notify

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// messenger stores the requests that it gets, and answers each with the status that accept returns.
type messenger struct {
	accept func(r *http.Request, body []byte) int
	bodies []string
	header http.Header
}

func (m *messenger) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		body = nil
	}
	m.bodies, m.header = append(m.bodies, string(body)), r.Header
	w.WriteHeader(m.accept(r, body))
}

// acceptSlack answers as an incoming webhook of Slack does: 400 no_text or invalid_payload for anything but an object with a text.
func acceptSlack(r *http.Request, body []byte) int {
	var m struct{ Text string }
	d := json.NewDecoder(strings.NewReader(string(body)))
	d.DisallowUnknownFields()
	if r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/json" || d.Decode(&m) != nil || m.Text == "" ||
		strings.ContainsAny(m.Text, "<>") || len(m.Text) > 40_000 {
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// acceptNtfy answers as ntfy does for the URL of a topic: the body is the message, and becomes a file above 4,096 bytes.
func acceptNtfy(r *http.Request, body []byte) int {
	priorities := map[string]bool{"": true, "min": true, "low": true, "default": true, "high": true, "urgent": true}
	topic := strings.Trim(r.URL.Path, "/")
	if r.Method != http.MethodPost || topic == "" || strings.Contains(topic, "/") || len(body) == 0 || len(body) > 4096 ||
		!priorities[r.Header.Get("Priority")] || r.Header.Get("Title") == "" {
		return http.StatusBadRequest
	}
	return http.StatusOK
}

// TestFormats: Slack and ntfy accept what is sent, also of a run whose texts are hostile and long.
func TestFormats(t *testing.T) {
	hostile := waiting("r2", "1.bind.1")
	hostile.By = "eve\r\nPriority: min " + strings.Repeat("y", 3000)
	hostile.Question.Text, hostile.Next = "<!channel> & "+strings.Repeat("\U0001f525", 3000), strings.Repeat("z", 3000)
	for format, accept := range map[string]func(*http.Request, []byte) int{
		inventory.NoticeSlack: acceptSlack, inventory.NoticeNtfy: acceptNtfy,
	} {
		t.Run(format, func(t *testing.T) {
			m := &messenger{accept: accept}
			server := httptest.NewServer(m)
			defer server.Close()
			s := newSite(t, server.URL+"/CANARY-topic")
			s.cfg.Format = format
			require.NoError(t, os.Remove(s.cfg.SecretFile), "these formats need no secret")
			require.NoError(t, s.store.Workflows.PutWorkflow(t.Context(), waiting("r1", "1.bind.1")))
			require.NoError(t, s.store.Workflows.PutWorkflow(t.Context(), hostile))
			sender, err := New(s.cfg)
			require.NoError(t, err)
			require.NoError(t, sender.Check())
			require.True(t, sender.next(t.Context()))

			text := m.header.Get("Title") + "\n" + m.bodies[0]
			if format == inventory.NoticeSlack {
				var body struct{ Text string }
				require.NoError(t, json.Unmarshal([]byte(m.bodies[0]), &body))
				text = body.Text
			}
			require.Equal(t, "node-1: waiting-for-operator (nas)\ntwo disks match[2J\n"+
				"ingot workflow decide node-1 --question 1.bind.1 --choice retry\nby alice", text)
			require.Equal(t, map[string]string{inventory.NoticeNtfy: "high"}[format], m.header.Get("Priority"))

			require.True(t, sender.next(t.Context()))
			_, err = sender.Test(t.Context(), "alice")
			require.NoError(t, err)
			counts, err := s.store.Notices.Notices(t.Context())
			require.NoError(t, err)
			require.Zero(t, counts.Waiting, counts.Error)
			require.Len(t, m.bodies, 3)
			require.NotContains(t, s.log.String(), "CANARY")
		})
	}
}
