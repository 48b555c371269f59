package action

import "net/url"

// PublicURL returns a URL for messages: without user, password, query and fragment, which may
// hold passwords, signatures and tokens. A text that is not a URL becomes "an invalid URL".
func PublicURL(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "an invalid URL"
	}

	u.User, u.RawQuery, u.ForceQuery, u.Fragment, u.RawFragment = nil, "", false, "", ""
	return u.String()
}
