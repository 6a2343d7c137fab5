module colophon/deploy/arch

go 1.26.0
