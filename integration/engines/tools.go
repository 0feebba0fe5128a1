//go:build tools

// Package tools names the packages that the test program of critest imports, so that go.mod keeps their modules.
package tools

import (
	_ "sigs.k8s.io/cri-tools/pkg/benchmark"
	_ "sigs.k8s.io/cri-tools/pkg/framework"
	_ "sigs.k8s.io/cri-tools/pkg/validate"
)
