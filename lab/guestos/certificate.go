package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"time"
)

// selfSigned returns a self-signed certificate, as products have at first: the stored one (PEM), or a new one.
func selfSigned(name string, kept []byte) (cert tls.Certificate, keep []byte, err error) {
	if cert, err := tls.X509KeyPair(kept, kept); err == nil {
		return cert, kept, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return cert, nil, err
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(365 * 24 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		return cert, nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return cert, nil, err
	}
	keep = append(
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})...)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, keep, nil
}

// serveTLS serves handler; stopped receives the error that ends it.
func serveTLS(ctx context.Context, cert tls.Certificate, addr string, handler http.Handler, stopped chan<- error) (*http.Server, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp4", addr)
	if err != nil {
		return nil, err
	}
	s := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}},
	}
	go func() { stopped <- s.ServeTLS(l, "", "") }()
	return s, nil
}
