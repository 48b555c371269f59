package template

// A functionGroup is a section of the function reference, with an example of each function.
type functionGroup struct {
	title    string
	examples []string // each starts with the name of its function
}

// functionGroups has an example of every function that templates can call; a test compares them.
// The must variants of sprig's functions are described together.
var functionGroups = []functionGroup{
	{"Of machines", []string{
		`formatPartition "/dev/nvme0n1" 2`,
		`netmaskToPrefixLength "255.255.254.0"`,
		`netmaskToCIDR "255.255.255.0"`,
	}},
	{"Text", []string{
		`quote "a \"b\""`, `squote "a"`, `upper "abc"`, `lower "ABC"`, `title "first second"`, `untitle "First Second"`,
		`swapcase "aBc"`, `snakecase "FirstName"`, `camelcase "first_name"`, `kebabcase "FirstName"`, `initials "First Second"`,
		`trim "  a  "`, `trimAll "/" "/a/"`, `trimall "/" "/a/"`, `trimPrefix "v" "v1.5"`, `trimSuffix ".raw" "disk.raw"`,
		`nospace "a b c"`, `substr 0 3 "machine"`, `trunc 3 "machine"`, `abbrev 6 "long text"`, `abbrevboth 5 9 "a rather long text"`,
		`replace "." "-" "10.0.0.1"`, `contains "hay" "haystack"`, `hasPrefix "hay" "haystack"`, `hasSuffix "stack" "haystack"`,
		`cat "a" "b"`, `indent 2 "a"`, `nindent 2 "a"`, `wrap 5 "one two"`, `wrapWith 3 "-" "onetwo"`, `plural "disk" "disks" 2`,
		`printf "%05d" 42`, `print "a" 1`, `println "a" 1`, `toString 42`, `hello`,
	}},
	{"Numbers", []string{
		`int "42"`, `int64 "42"`, `float64 "1.5"`, `atoi "42"`, `toDecimal "0644"`, `add 1 2 3`, `add1 1`, `sub 5 2`, `mul 2 3`,
		`div 7 2`, `mod 7 2`, `addf 1.5 2`, `add1f 1.5`, `subf 2 0.5`, `mulf 1.5 2`, `divf 3 2`, `max 1 3 2`, `biggest 1 3 2`, `min 1 3 2`,
		`maxf 1.5 2`, `minf 1.5 2`, `ceil 1.2`, `floor 1.8`, `round 1.237 2`,
	}},
	{"Lists", []string{
		`list "a" "b"`, `tuple "a" "b"`, `index (list "a" "b") 1`, `len (list "a" "b")`, `first (list "a" "b" "c")`, `rest (list "a" "b" "c")`,
		`last (list "a" "b" "c")`, `initial (list "a" "b" "c")`, `append (list "a") "b"`, `push (list "a") "b"`, `prepend (list "b") "a"`,
		`concat (list "a") (list "b")`, `reverse (list "a" "b")`, `uniq (list "a" "a" "b")`, `without (list "a" "b") "a"`,
		`has "a" (list "a" "b")`, `slice (list "a" "b" "c") 1 3`, `chunk 2 (list "a" "b" "c")`, `compact (list "a" "" "b")`,
		`sortAlpha (list "b" "a")`, `join "," (list "a" "b")`, `splitList "," "a,b"`, `toStrings (list 1 2)`,
	}},
	{"Mappings", []string{
		`dict "a" 1`, `get (dict "a" 1) "a"`, `set (dict "a" 1) "b" 2`, `unset (dict "a" 1 "b" 2) "b"`, `hasKey (dict "a" 1) "a"`,
		`keys (dict "a" 1)`, `values (dict "a" 1)`, `pick (dict "a" 1 "b" 2) "a"`, `omit (dict "a" 1 "b" 2) "a"`,
		`pluck "a" (dict "a" 1) (dict "a" 2)`, `merge (dict "a" 1) (dict "b" 2)`, `mergeOverwrite (dict "a" 1) (dict "a" 2)`,
		`dig "a" "b" "none" (dict "a" (dict "b" "c"))`, `deepCopy (dict "a" 1)`, `split "," "a,b"`, `splitn "," 2 "a,b,c"`,
	}},
	{"Choices", []string{
		`default "none" ""`, `empty ""`, `coalesce "" "a"`, `ternary "yes" "no" true`, `all 1 2`, `any "" 1`, `and true "a"`, `or "" "a"`,
		`not true`, `eq 1 1`, `ne 1 2`, `lt 1 2`, `le 1 2`, `gt 2 1`, `ge 2 1`, `fail "a reason"`,
	}},
	{"Encoding", []string{
		`toYaml (dict "a" (list 1 2))`, `fromYaml "a: 1"`, `toJson (dict "a" 1)`, `toPrettyJson (dict "a" 1)`, `toRawJson (dict "a" "<b>")`,
		`fromJson "{\"a\": 1}"`, `b64enc "a"`, `b64dec "YQ=="`, `b32enc "a"`, `b32dec "ME======"`, `sha1sum "a"`, `sha256sum "a"`,
		`sha512sum "a"`, `adler32sum "a"`, `html "<a>"`, `js "it's"`, `urlquery "a b"`,
	}},
	{"Paths, URLs and versions", []string{
		`base "/dev/sda"`, `dir "/dev/sda"`, `clean "/a/../b"`, `ext "disk.raw"`, `isAbs "/a"`, `osBase "/dev/sda"`, `osDir "/dev/sda"`,
		`osClean "/a/../b"`, `osExt "disk.raw"`, `osIsAbs "/a"`, `urlParse "http://10.0.0.1:80/a?b=c"`,
		`urlJoin (dict "scheme" "http" "host" "10.0.0.1" "path" "/a")`, `semver "1.2.3"`, `semverCompare ">=1.2.0" "1.2.3"`,
	}},
	{"Regular expressions", []string{
		`regexMatch "^a+$" "aaa"`, `regexFind "[0-9]+" "sda12"`, `regexFindAll "[0-9]" "a1b2" -1`, `regexReplaceAll "a(b)" "ab" "${1}a"`,
		`regexReplaceAllLiteral "a" "aba" "$"`, `regexSplit "," "a,b" -1`, `regexQuoteMeta "1.5"`,
	}},
	{"Types", []string{
		`kindOf "a"`, `kindIs "string" "a"`, `typeOf 1`, `typeIs "int" 1`, `typeIsLike "int" 1`, `deepEqual (list 1) (list 1)`,
		`duration "95"`,
	}},
}
