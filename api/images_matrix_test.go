package api

import (
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/ingotmetal/ingot/inventory"
)

// matrixXZ and matrixBzip2 are diskOf(2 MiB, 2048 sectors), by "xz -9" and "bzip2 -9".
const (
	matrixXZ = "/Td6WFoAAATm1rRGAgAhARwAAAAQz1jM//72AX5dAABv/fyfLxKfm/8cOvlFOfJot6Bwf2oGV3EjwgsjFRybw5wOQfMk8rE6CUjkS6oq7Zkr" +
		"IExO930aEb9kuL2mD0TTTwY2vi6LQcIr9IxtLexrsEl7nafLGXBBCAwA+5GkY0l/irt2H31uHT2RmTRsA0UZE4OKne2TodVtktSO2mbhTuo9mUkW" +
		"K5X5R/pO51LikgZWGZ5EnuLS5Eb2VPCIdSww28JQVJEilwYDX8lwOxTAMjeYpRUBpeijCSrsqv9aJqxyDBaSp745jyThcJ6nI1/sKMuF0ZWYin4q" +
		"kfIndfcZvvyyn4DIE/rPij7lb5XKSK6n3jIxGp+3jTFucJ6nI1/sKMuF0ZWYin4qkfIndfcZwAaYTZj92K/VkA/EJVP49ZE2MQWlsO5vwXBNRwzR" +
		"kRGqrWAdus6xJxhcWYbpZlJYvul2rFnk5VsFCPnH2q38+1IrdM0eWyBC+d1TPfgpZAk7gMsqbN+1O/DEvS5fqg8+S2ZCkBMO/xCT+HB5VCeAAQgA" +
		"BQAjXd00AAAAAAAcYtcNmJ8FTgABpQOAgIABNivMjbHEZ/sCAAAAAARZWg=="
	matrixBzip2 = "QlpoOTFBWSZTWf+Ah7gAAAPWXcBAAAEBAAoACAAAEAAAgAIAAIAIIABQgaBoBSpAD1OtbYfaJAGaX3HNUoC88zOGaVQB+LuSKcKEh/wEPcA="
)

// How an import may end.
const (
	continues = "what came stays, and the next attempt continues"
	isStored  = "stored: the format has no checksum that shows it"
	changed   = "changed while it was sent"
	declared  = "was declared; nothing was kept"
)

// matrix is how the import of a damaged file ends: as above, or refused with this message. Whatever happens, the old image
// stays until the new one is whole.
var matrix = map[string]struct{ cut, short, flipped, flippedWhileSent, wrongDigest string }{
	"raw":   {continues, "cut short: partition 1", isStored, changed, declared},
	"gz":    {continues, "gz data is cut short or damaged", "gz data is damaged", changed, declared},
	"zst":   {continues, "zst data is cut short or damaged", "zst data is damaged", changed, declared},
	"xz":    {continues, "xz data is cut short or damaged", "xz data is damaged", changed, declared},
	"bz2":   {continues, "bz2 data is cut short or damaged", "bz2 data is damaged", changed, declared},
	"qcow2": {continues, "qcow2 image is cut short or damaged", isStored, changed, declared},
}

// S18: among the damages is a digest that is not the declared one.
func TestS20DamagedImagesAtImport(t *testing.T) {
	disk := diskOf(2<<20, 2048)
	decoded := func(text string) string {
		b, err := base64.StdEncoding.DecodeString(text)
		require.NoError(t, err)
		return string(b)
	}
	files := map[string]string{
		"raw": string(disk), "gz": gz(t, disk), "zst": zst(t, disk), "xz": decoded(matrixXZ), "bz2": decoded(matrixBzip2),
		"qcow2": string(qcow2(disk)),
	}
	require.Len(t, matrix, len(files))

	for format, want := range matrix {
		file := files[format]
		half := len(file) / 2
		flipped := file[:half] + string([]byte{file[half] ^ 0x10}) + file[half+1:]
		sum := sumOf(file)
		t.Run(format, func(t *testing.T) {
			importEnds(t, want.cut, file, "content="+sum, func(s *site, path string) { s.cutUpload(path, file, half) })
			importEnds(t, want.short, file[:len(file)*3/4], "", nil)
			importEnds(t, want.flipped, flipped, "", nil)
			importEnds(t, want.flippedWhileSent, flipped, "content="+sum, nil)
			importEnds(t, want.wrongDigest, file, "sha256="+sumOf("another file"), nil)
			importEnds(t, want.wrongDigest, flipped, "sha256="+sum, nil)
		})
	}
}

// importEnds imports a file over an old image. first is an attempt before the one with the whole file.
func importEnds(t *testing.T, want, file, query string, first func(s *site, path string)) {
	t.Helper()
	s := newSite(t)
	old := decode[inventory.Image](t, s.do(http.MethodPut, "/v1/images/x", "the old image"), http.StatusCreated)
	path, stays := "/v1/images/x?"+query, func() {
		t.Helper()
		now := decode[inventory.Image](t, s.do(http.MethodGet, "/v1/images/x", nil), http.StatusOK)
		require.Equal(t, old.SHA256, now.SHA256)
		require.Contains(t, s.contents(), "the old image")
	}

	switch want {
	case continues:
		first(s, path)
		stays()
		at := s.do(http.MethodHead, strings.Replace(path, "x?", "x/upload?", 1), nil).Header().Get(uploadOffset)
		require.Equal(t, strconv.Itoa(len(file)/2), at)
		i := decode[inventory.Image](t, s.do(http.MethodPut, path+"&offset="+at, file[len(file)/2:]), http.StatusCreated)
		require.Equal(t, sumOf(file), i.Source.SHA256)
		require.Equal(t, []string{i.File}, s.files())

	case isStored:
		i := decode[inventory.Image](t, s.do(http.MethodPut, path, file), http.StatusCreated)
		require.True(t, i.FirstSeen, "no one declared what it is")

	default:
		a := decode[answer](t, s.do(http.MethodPut, path, file), http.StatusBadRequest)
		require.Contains(t, a.Error, want)
		stays()
		require.Equal(t, []string{old.File}, s.files(), "nothing of the new file is kept")
	}
}
