package metadatasvc

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/aws/aws-sdk-go-v2/feature/ec2/imds"
	"github.com/stretchr/testify/require"
)

// fromNode1 sends requests to the service from node1's address.
type fromNode1 struct{ handler http.Handler }

func (f fromNode1) Do(r *http.Request) (*http.Response, error) {
	r.RemoteAddr = node1 + ":40000"
	w := httptest.NewRecorder()
	f.handler.ServeHTTP(w, r)
	return w.Result(), nil
}

// TestIMDSClient: the client of the AWS SDK gets a token (IMDSv2), and with it the metadata and, by the opt-in of the machine, the
// user data.
func TestIMDSClient(t *testing.T) {
	s, f, _ := newServer(t)
	m := f.machines["node1"]
	m.UserDataByAddress = true
	f.machines["node1"] = m
	client := imds.New(imds.Options{
		Endpoint: "http://169.254.169.254", HTTPClient: fromNode1{s.Handler()}, ClientEnableState: imds.ClientEnabled,
	})
	read := func(body io.ReadCloser, err error) string {
		t.Helper()
		require.NoError(t, err)
		b, err := io.ReadAll(body)
		require.NoError(t, err)
		require.NoError(t, body.Close())
		return string(b)
	}

	id, err := client.GetMetadata(t.Context(), &imds.GetMetadataInput{Path: "instance-id"})
	require.NoError(t, err)
	require.Equal(t, get(t, s, "/latest/meta-data/instance-id", node1).Body.String(), read(id.Content, nil))
	mac, err := client.GetMetadata(t.Context(), &imds.GetMetadataInput{Path: "mac"})
	require.NoError(t, err)
	require.Equal(t, m.Interfaces[0].MAC, read(mac.Content, nil))
	user, err := client.GetUserData(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, get(t, s, "/latest/user-data", node1).Body.String(), read(user.Content, nil))
	_, err = client.GetMetadata(t.Context(), &imds.GetMetadataInput{Path: "no-such-key"})
	require.ErrorContains(t, err, "404")
}
