package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// S42: the agent starts the shell of a rescue, which gets no arguments, programs of its own system, and what a signed plan
// says. So nothing from the network, a time server's name or a host name for example, can pass through a shell.
// simulated.go is for machines of the lab.
func TestS42NothingPassesThroughAShell(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	require.NoError(t, filepath.WalkDir("../../worker-agent", func(file string, _ fs.DirEntry, err error) error {
		if strings.HasSuffix(file, ".go") && !strings.Contains(file, "test/") {
			files = append(files, file)
		}
		return err
	}))

	shells, programs := 0, map[string]int{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") || file == "simulated.go" {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, file, nil, 0)
		require.NoError(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			call, isCall := n.(*ast.CallExpr)
			if !isCall {
				return true
			}
			starts, program := startsProgram(call)
			if starts && program == "" {
				programs[filepath.Base(file)]++
			} else if starts {
				shells++
				require.Equal(t, "/bin/sh", program, fset.Position(call.Pos()))
				require.Len(t, call.Args, 1, fset.Position(call.Pos()))
			}
			return true
		})
	}
	require.Equal(t, 1, shells, "the shell of a rescue")
	require.Equal(t, map[string]int{
		"programs_linux.go":  1, // of the agent's own system, found by name in its folders
		"container_linux.go": 1, // this program again, for a container
		"start_linux.go":     1, // the container runtime, whose digest is in the signed order
		"inside_linux.go":    1, // of the installed system, from a signed plan
	}, programs, "no other program is started")
}

// startsProgram reports whether a call starts a program, and which if it is a constant.
func startsProgram(call *ast.CallExpr) (starts bool, program string) {
	f, isSelector := call.Fun.(*ast.SelectorExpr)
	if !isSelector {
		return false, ""
	}
	pkg, isName := f.X.(*ast.Ident)
	if !isName {
		return false, ""
	}
	switch pkg.Name + "." + f.Sel.Name {
	case "exec.Command", "exec.CommandContext", "os.StartProcess", "syscall.Exec", "syscall.ForkExec", "unix.Exec":
	default:
		return false, ""
	}
	if text, isLiteral := call.Args[0].(*ast.BasicLit); isLiteral {
		program, _ = strconv.Unquote(text.Value)
	}
	return true, program
}
