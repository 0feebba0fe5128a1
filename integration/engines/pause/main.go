// Pause waits for a signal. It is the process of a pod's sandbox, for runtimes that need such a process.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// PID 1 of a PID namespace adopts orphaned processes. The kernel reaps them if SIGCHLD is ignored.
	signal.Ignore(syscall.SIGCHLD)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	<-ended
}
