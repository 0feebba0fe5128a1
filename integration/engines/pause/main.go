// Pause waits for a signal. It is the process of a pod's sandbox, for runtimes that need such a process.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// The first process of a PID namespace gets the children of processes that ended: the kernel removes these if
	// their signal is ignored.
	signal.Ignore(syscall.SIGCHLD)
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	<-ended
}
