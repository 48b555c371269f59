package ingot

import (
	"go/ast"
	"testing"
)

// TestS43TLSVersions: every TLS configuration of the two programs names its oldest version, and that is TLS 1.2 or 1.3.
func TestS43TLSVersions(t *testing.T) {
	found := 0
	for _, f := range productFiles(t) {
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			literal, ok := n.(*ast.CompositeLit)
			if !ok || !isSelector(literal.Type, "tls", "Config") {
				return true
			}
			found++
			for _, e := range literal.Elts {
				field, ok := e.(*ast.KeyValueExpr)
				if !ok {
					continue
				}
				if name, ok := field.Key.(*ast.Ident); ok && name.Name == "MinVersion" {
					if !isSelector(field.Value, "tls", "VersionTLS12") && !isSelector(field.Value, "tls", "VersionTLS13") {
						t.Errorf("%s: MinVersion must be tls.VersionTLS12 or tls.VersionTLS13", f.set.Position(field.Pos()))
					}
					return true
				}
			}
			t.Errorf("%s: tls.Config without MinVersion", f.set.Position(literal.Pos()))
			return true
		})
	}
	if found == 0 {
		t.Error("no tls.Config was found")
	}
}

// TestS35HTTPServersAreBounded: every HTTP server of the two programs bounds the size and the time of headers, and idle connections.
func TestS35HTTPServersAreBounded(t *testing.T) {
	found := 0
	for _, f := range productFiles(t) {
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			literal, ok := n.(*ast.CompositeLit)
			if !ok || !isSelector(literal.Type, "http", "Server") {
				return true
			}
			found++
			set := map[string]bool{}
			for _, e := range literal.Elts {
				if field, ok := e.(*ast.KeyValueExpr); ok {
					if name, ok := field.Key.(*ast.Ident); ok {
						set[name.Name] = true
					}
				}
			}
			for _, limit := range []string{"ReadHeaderTimeout", "IdleTimeout", "MaxHeaderBytes"} {
				if !set[limit] {
					t.Errorf("%s: http.Server without %s", f.set.Position(literal.Pos()), limit)
				}
			}
			return true
		})
	}
	if found == 0 {
		t.Error("no http.Server was found")
	}
}

// isSelector reports whether e is pkg.name.
func isSelector(e ast.Expr, pkg, name string) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == pkg
}
