package httpapi

import (
	"cmp"
	"slices"
	"strings"

	"github.com/ingotmetal/ingot/inventory"
)

// Page holds the query parameters of a list: the maximum number of items (0 means the route's default, which is all
// items in most routes), the cursor after which the page begins, and the sort key.
type Page struct {
	Limit int    `query:"limit" json:"-"`
	After string `query:"after" json:"-"`
	Sort  string `query:"sort" json:"-"`
}

// Descending reports whether the list is sorted in descending order. p.Sort must be key (ascending), "-" followed by
// key (descending), or "", which means byDefault.
func (p Page) Descending(key, byDefault string) (bool, error) {
	switch cmp.Or(p.Sort, byDefault) {
	case key:
		return false, nil
	case "-" + key:
		return true, nil
	}
	return false, inventory.Invalid("sort", key+" or -"+key, "invalid value %q", p.Sort)
}

// Cut returns the first limit items as a List, or all items if limit is 0. If items are left out, Next is the cursor of
// the last returned item.
func Cut[T any](items []T, limit int, cursor func(T) string) List[T] {
	if limit <= 0 || len(items) <= limit {
		return NewList(items)
	}
	return List[T]{Items: items[:limit], Next: cursor(items[limit-1])}
}

// PageByName returns the page p of all, sorted by name. The cursor is the name of the last item, so it stays valid when
// items are added or removed. A zero Page means all items in their given order.
func PageByName[T any](all []T, p Page, name func(T) string) (List[T], error) {
	if p == (Page{}) {
		return NewList(all), nil // in the order of the store
	}
	descending, err := p.Descending("name", "name")
	if err != nil {
		return List[T]{}, err
	}
	compare := strings.Compare
	if descending {
		compare = func(a, b string) int { return strings.Compare(b, a) }
	}

	slices.SortFunc(all, func(a, b T) int { return compare(name(a), name(b)) })
	if p.After != "" {
		all = slices.DeleteFunc(all, func(x T) bool { return compare(name(x), p.After) <= 0 })
	}
	return Cut(all, p.Limit, name), nil
}
