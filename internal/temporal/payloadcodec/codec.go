// Package payloadcodec encrypts the payloads that Ingot writes into a Temporal cluster: inputs, results, signals, failures and
// summaries. Workflow ids, search attributes and the names of activities stay readable, because Temporal itself uses them.
//
// The format follows Temporal's own examples of encryption. The metadata contains the encoding binary/encrypted and the id
// of the key. The data is a random nonce of 12 bytes, followed by the marshalled payload, encrypted with AES-256-GCM (NIST SP
// 800-38D).
package payloadcodec

import (
	"bufio"
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	commonpb "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"
	"google.golang.org/protobuf/proto"

	"github.com/ingotmetal/ingot/internal/host/durablefile"
	"github.com/ingotmetal/ingot/inventory"
)

const (
	encoding = "binary/encrypted"
	keyID    = "encryption-key-id" // name of the key's id in a payload's metadata
	keySize  = 32                  // bytes
)

// A Codec is a converter.PayloadCodec. It is safe for concurrent use.
type Codec struct {
	file    string
	current string // id of the key with which Encode encrypts
	keys    map[string]cipher.AEAD
}

// Read reads a key file: each line holds a key's id, a space, and the 32 bytes of the key in base64. The first key encrypts; all keys
// decrypt. If the file has no key, the error is inventory.ErrInvalid. [durablefile.ReadPrivate] says which file modes are refused.
func Read(file string) (*Codec, error) {
	text, err := durablefile.ReadPrivate(file)
	if err != nil {
		return nil, fmt.Errorf("reading key file %q: %w", file, err)
	}

	c := &Codec{file: file, keys: map[string]cipher.AEAD{}}
	var problems []error
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if err := c.add(line); err != nil {
			problems = append(problems, fmt.Errorf("%s:%d: %w", file, n, err))
		}
	}
	problems = append(problems, lines.Err())
	if c.current == "" && errors.Join(problems...) == nil {
		problems = append(problems, fmt.Errorf("%s contains no key; make one with: ingot temporal new-key: %w", file, inventory.ErrInvalid))
	}
	return c, errors.Join(problems...)
}

// add adds the key in line. Its errors do not quote the line.
func (c *Codec) add(line string) error {
	id, text, _ := strings.Cut(line, " ")
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(text))
	switch {
	case err != nil || len(key) != keySize:
		return fmt.Errorf("invalid line; must be a key's id, a space, and 32 bytes in base64: %w", inventory.ErrInvalid)
	case c.keys[id] != nil:
		return fmt.Errorf("two lines have the key id %q: %w", id, inventory.ErrInvalid)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return err
	}
	if c.keys[id], err = cipher.NewGCM(block); err != nil {
		return err
	}
	if c.current == "" {
		c.current = id
	}
	return nil
}

// NewKey inserts a new random key before the keys in file and returns its id. If the file does not exist, it is created with mode 0600. The
// file is replaced atomically. A file that is not a valid key file is not changed.
func NewKey(file string) (id string, err error) {
	old, err := durablefile.ReadPrivate(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return "", err
	default:
		if _, err := Read(file); err != nil {
			return "", err
		}
	}
	var b [4 + keySize]byte
	rand.Read(b[:]) // never returns an error
	id = hex.EncodeToString(b[:4])
	text := id + " " + base64.StdEncoding.EncodeToString(b[4:]) + "\n" + string(old)
	return id, durablefile.Replace(file, []byte(text))
}

// Encode encrypts each payload with the first key. Payloads that are already encrypted stay as they are.
func (c *Codec) Encode(payloads []*commonpb.Payload) ([]*commonpb.Payload, error) {
	out := make([]*commonpb.Payload, len(payloads))
	for i, p := range payloads {
		if isEncrypted(p) {
			out[i] = p
			continue
		}
		plain, err := proto.Marshal(p)
		if err != nil {
			return nil, err
		}
		key := c.keys[c.current]
		nonce := make([]byte, key.NonceSize(), key.NonceSize()+len(plain)+key.Overhead())
		rand.Read(nonce) // never returns an error
		out[i] = &commonpb.Payload{
			Metadata: map[string][]byte{converter.MetadataEncoding: []byte(encoding), keyID: []byte(c.current)},
			Data:     key.Seal(nonce, nonce, plain, nil),
		}
	}
	return out, nil
}

// Decode decrypts each payload. Payloads that are not encrypted stay as they are, because the temporal command does not encrypt its inputs
// if it has no codec server.
func (c *Codec) Decode(payloads []*commonpb.Payload) ([]*commonpb.Payload, error) {
	out := make([]*commonpb.Payload, len(payloads))
	for i, p := range payloads {
		if !isEncrypted(p) {
			out[i] = p
			continue
		}
		id := string(p.GetMetadata()[keyID])
		key := c.keys[id]
		if key == nil {
			return nil, fmt.Errorf("a payload is encrypted with key %q, which is not in %s: %w", id, c.file, inventory.ErrSealed)
		}
		data := p.GetData()
		if len(data) < key.NonceSize() {
			return nil, fmt.Errorf("a payload of %d bytes is too short to be encrypted with key %q: %w", len(data), id, inventory.ErrSealed)
		}
		plain, err := key.Open(nil, data[:key.NonceSize()], data[key.NonceSize():], nil)
		if err != nil {
			return nil, fmt.Errorf("a payload cannot be decrypted with key %q: the payload or the key was changed: %w", id, inventory.ErrSealed)
		}
		out[i] = &commonpb.Payload{}
		if err := proto.Unmarshal(plain, out[i]); err != nil {
			return nil, fmt.Errorf("decoding a decrypted payload: %w", err)
		}
	}
	return out, nil
}

func isEncrypted(p *commonpb.Payload) bool {
	return string(p.GetMetadata()[converter.MetadataEncoding]) == encoding
}
