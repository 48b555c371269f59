package notify

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// An envelope is what is sent to a receiver.
type envelope struct {
	header http.Header
	body   []byte
}

func newEnvelope(contentType string, body []byte) envelope {
	return envelope{http.Header{"Content-Type": {contentType}}, body}
}

// writeStandard returns a notice as Standard Webhooks describe it, without the signature.
func writeStandard(server string, n inventory.Notice) (envelope, error) {
	body, err := json.Marshal(struct {
		Server string `json:"server"`
		inventory.Notice
	}{server, n})
	return newEnvelope("application/json", body), err
}

// slackEscape makes text inert for Slack, where <!channel> would call everyone.
// See https://docs.slack.dev/messaging/formatting-message-text.
var slackEscape = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// writeSlack is for incoming webhooks of Slack, and of the programs that take the same: Mattermost, Rocket.Chat and others.
func writeSlack(server string, n inventory.Notice) (envelope, error) {
	body, err := json.Marshal(map[string]string{"text": slackEscape.Replace(title(server, n) + "\n" + message(n))})
	return newEnvelope("application/json", body), err
}

// writeNtfy is for the URL of a topic of ntfy. See https://docs.ntfy.sh/publish.
func writeNtfy(server string, n inventory.Notice) envelope {
	e := newEnvelope("text/plain; charset=utf-8", []byte(message(n)))
	e.header.Set("Title", title(server, n))
	e.header.Set("Tags", n.Event)
	if slices.Contains(inventory.UrgentNoticeEvents(), n.Event) {
		e.header.Set("Priority", "high")
	}
	return e
}

// title says on one line what has happened to what: "node-1: installed (nas)".
func title(server string, n inventory.Notice) string {
	return cmp.Or(n.Machine, n.Workflow, "ingot") + ": " + n.Event + " (" + server + ")"
}

// message is the text of a notice for people. It has fewer than the 4,096 bytes beyond which ntfy makes a file of it,
// because each text of a notice has at most about 500.
func message(n inventory.Notice) string {
	lines := []string{n.Text}
	if n.Next != "" {
		lines = append(lines, n.Next)
	}
	if n.By != "" {
		lines = append(lines, "by "+n.By)
	}
	return strings.Join(lines, "\n")
}
