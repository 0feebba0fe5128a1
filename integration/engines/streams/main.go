// Command streams opens a URL of executor-streams with client-go, as kubectl and the API server do.
//
//	streams exec spdy|websocket PROTOCOL URL [stdin] [stdout] [stderr] [tty]
//	streams forward spdy|websocket URL PORT
//
// exec connects the streams of this program to the remote process and exits with the status of the remote process, or
// with 255 after another error. If PROTOCOL is empty, all protocols of client-go are offered. forward prints the local
// port and serves until its standard input is closed. Certificates are not verified, because a kubelet's certificate is
// self-signed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
)

// sizes is a queue with one size of the terminal.
type sizes struct {
	next chan remotecommand.TerminalSize
}

func (s sizes) Next() *remotecommand.TerminalSize {
	size, ok := <-s.next
	if !ok {
		return nil
	}
	return &size
}

func insecure() *rest.Config {
	return &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
}

func executor(transport, protocol, address string) (remotecommand.Executor, error) {
	config := insecure()
	if transport == "websocket" {
		if protocol == "" {
			return remotecommand.NewWebSocketExecutor(config, http.MethodGet, address)
		}
		return remotecommand.NewWebSocketExecutorForProtocols(config, http.MethodGet, address, protocol)
	}
	parsed, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	if protocol == "" {
		return remotecommand.NewSPDYExecutor(config, http.MethodPost, parsed)
	}
	roundTripper, upgrader, err := spdy.RoundTripperFor(config)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewSPDYExecutorForProtocols(roundTripper, upgrader, http.MethodPost, parsed, protocol)
}

func exec(transport, protocol, address string, streams []string) error {
	executor, err := executor(transport, protocol, address)
	if err != nil {
		return err
	}
	options := remotecommand.StreamOptions{Tty: slices.Contains(streams, "tty")}
	if slices.Contains(streams, "stdin") {
		options.Stdin = os.Stdin
	}
	if slices.Contains(streams, "stdout") {
		options.Stdout = os.Stdout
	}
	if slices.Contains(streams, "stderr") {
		options.Stderr = os.Stderr
	}
	if options.Tty {
		queue := sizes{make(chan remotecommand.TerminalSize, 1)}
		queue.next <- remotecommand.TerminalSize{Width: 123, Height: 45}
		close(queue.next)
		options.TerminalSizeQueue = queue
	}
	return executor.StreamWithContext(context.Background(), options)
}

func forward(transport, address, port string) error {
	parsed, err := url.Parse(address)
	if err != nil {
		return err
	}
	config := insecure()
	var dialer httpstream.Dialer
	if transport == "websocket" {
		if dialer, err = portforward.NewSPDYOverWebsocketDialer(parsed, config); err != nil {
			return err
		}
	} else {
		roundTripper, upgrader, err := spdy.RoundTripperFor(config)
		if err != nil {
			return err
		}
		dialer = spdy.NewDialer(upgrader, &http.Client{Transport: roundTripper}, http.MethodPost, parsed)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.New(dialer, []string{"0:" + port}, stop, ready, io.Discard, os.Stderr)
	if err != nil {
		return err
	}
	go func() {
		<-ready
		ports, err := forwarder.GetPorts()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(255)
		}
		fmt.Println(ports[0].Local)
		io.Copy(io.Discard, os.Stdin)
		close(stop)
	}()
	return forwarder.ForwardPorts()
}

func main() {
	var err error
	switch arguments := os.Args[1:]; {
	case len(arguments) >= 4 && arguments[0] == "exec":
		err = exec(arguments[1], arguments[2], arguments[3], arguments[4:])
	case len(arguments) == 4 && arguments[0] == "forward":
		err = forward(arguments[1], arguments[2], arguments[3])
	default:
		err = errors.New("usage: streams exec|forward ...")
	}
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, err)
	var exit utilexec.CodeExitError
	if errors.As(err, &exit) {
		os.Exit(exit.Code)
	}
	os.Exit(255)
}
