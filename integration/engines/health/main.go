// Health serves the health service of gRPC on a port. It serves until it is terminated.
package main

import (
	"log"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("health: ")
	if len(os.Args) != 2 {
		log.Fatal("usage: health PORT")
	}
	listener, err := net.Listen("tcp", ":"+os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	log.Fatal(server.Serve(listener))
}
