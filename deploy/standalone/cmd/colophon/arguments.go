package main

import (
	"errors"
	"reflect"

	"github.com/alecthomas/kong"
)

// exactArguments keep what was typed as the bytes it is. Kong's own mappers
// pass a value through JSON, which replaces whatever is not UTF-8: a folder
// with such a name could not be named.
func exactArguments() []kong.Option {
	return []kong.Option{
		kong.KindMapper(reflect.String, exact(func(s string) string { return s })),
		kong.NamedMapper("path", exact(func(s string) string {
			if s == "" || s == "-" {
				return s
			}
			return kong.ExpandPath(s)
		})),
	}
}

func exact(expand func(string) string) kong.MapperFunc {
	return func(ctx *kong.DecodeContext, target reflect.Value) error {
		if target.Kind() != reflect.String {
			return errors.New("not a string")
		}
		t, err := ctx.Scan.PopValue("string")
		if err != nil {
			return err
		}
		s, ok := t.Value.(string)
		if !ok {
			return errors.New("expected a string")
		}
		target.SetString(expand(s))
		return nil
	}
}
