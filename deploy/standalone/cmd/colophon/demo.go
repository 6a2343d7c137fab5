package main

import (
	"fmt"

	"colophon/deploy/standalone/internal/demo"
)

type demoCmd struct {
	Dir    string `arg:"" help:"Folder to draw into." type:"path" default:"./demo"`
	Repair bool   `help:"Draw the damaged page whole."`
}

func (c *demoCmd) Run(*session) error {
	if err := demo.Draw(c.Dir); err != nil {
		return err
	}
	if c.Repair {
		return demo.Repair(c.Dir)
	}
	fmt.Printf("drew seven pages into %s; %s is cut off on purpose\n", c.Dir, demo.Damaged)
	return nil
}
