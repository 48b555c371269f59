package action

import "net/url"

// PublicURL returns the URL text in a form for messages. It leaves out user, password, query and fragment, because these may
// contain passwords, signatures and tokens. If text is not a URL, PublicURL returns "an invalid URL".
func PublicURL(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "an invalid URL"
	}

	u.User, u.RawQuery, u.ForceQuery, u.Fragment, u.RawFragment = nil, "", false, "", ""
	return u.String()
}
