// Command density fills a node through the Kubernetes runtime interface and measures the calls that a kubelet makes on
// a full node.
//
//	density -endpoint unix:///run/executor/cri.sock [-pods 110] [-lists 20] [-image IMAGE]
//
// It creates pods with one sleeping container each, and calls every List method. It prints the measured times in
// milliseconds as one line of JSON, waits until its standard input is closed, and removes the pods.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// timeout is the kubelet's time limit for a call.
const timeout = 2 * time.Minute

func milliseconds(call func() error) (float64, error) {
	begin := time.Now()
	err := call()
	return float64(time.Since(begin).Microseconds()) / 1000, err
}

// fill creates the pods and returns the times until each container has started.
func fill(ctx context.Context, runtime cri.RuntimeServiceClient, pods int, image *cri.ImageSpec) ([]float64, error) {
	var times []float64
	for number := range pods {
		name := fmt.Sprintf("density-%d", number)
		config := &cri.PodSandboxConfig{
			Metadata: &cri.PodSandboxMetadata{Name: name, Uid: name, Namespace: "density"},
			Labels:   map[string]string{"density": "true"},
			Linux:    &cri.LinuxPodSandboxConfig{CgroupParent: "/pods-executor-engines/" + name},
		}
		took, err := milliseconds(func() error {
			pod, err := runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: config})
			if err != nil {
				return err
			}
			container, err := runtime.CreateContainer(ctx, &cri.CreateContainerRequest{
				PodSandboxId: pod.PodSandboxId,
				Config: &cri.ContainerConfig{
					Metadata: &cri.ContainerMetadata{Name: "sleep"},
					Image:    image,
					Command:  []string{"sleep", "86400"},
					Linux:    &cri.LinuxContainerConfig{},
				},
				SandboxConfig: config,
			})
			if err != nil {
				return err
			}
			_, err = runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: container.ContainerId})
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("pod %s: %w", name, err)
		}
		times = append(times, took)
	}
	return times, nil
}

// lists calls each List method of the interface and returns the times by method. Methods that the runtime does not
// implement are skipped. Each response must have one entry for each pod.
func lists(ctx context.Context, runtime cri.RuntimeServiceClient, pods, rounds int) (map[string][]float64, error) {
	calls := map[string]func() (int, error){
		"ListPodSandbox": func() (int, error) {
			list, err := runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
			return len(list.GetItems()), err
		},
		"ListContainers": func() (int, error) {
			list, err := runtime.ListContainers(ctx, &cri.ListContainersRequest{})
			return len(list.GetContainers()), err
		},
		"ListContainerStats": func() (int, error) {
			list, err := runtime.ListContainerStats(ctx, &cri.ListContainerStatsRequest{})
			return len(list.GetStats()), err
		},
		"ListPodSandboxStats": func() (int, error) {
			list, err := runtime.ListPodSandboxStats(ctx, &cri.ListPodSandboxStatsRequest{})
			return len(list.GetStats()), err
		},
	}
	times := map[string][]float64{}
	for range rounds {
		for name, call := range calls {
			var number int
			took, err := milliseconds(func() (err error) { number, err = call(); return err })
			if status.Code(err) == codes.Unimplemented {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if number != pods {
				return nil, fmt.Errorf("%s returned %d entries, expected %d", name, number, pods)
			}
			times[name] = append(times[name], took)
		}
	}
	return times, nil
}

// remove stops and removes the pods of this program.
func remove(ctx context.Context, runtime cri.RuntimeServiceClient) error {
	filter := &cri.PodSandboxFilter{LabelSelector: map[string]string{"density": "true"}}
	list, err := runtime.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{Filter: filter})
	if err != nil {
		return err
	}
	for _, pod := range list.Items {
		if _, err := runtime.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: pod.Id}); err != nil {
			return err
		}
		if _, err := runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: pod.Id}); err != nil {
			return err
		}
	}
	return nil
}

func run(runtime cri.RuntimeServiceClient, images cri.ImageServiceClient, pods, rounds int, image string) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeout+time.Duration(pods)*5*time.Second)
	defer cancel()
	spec := &cri.ImageSpec{Image: image}
	pulled, err := images.PullImage(ctx, &cri.PullImageRequest{Image: spec})
	if err != nil {
		return err
	}
	starts, err := fill(ctx, runtime, pods, &cri.ImageSpec{Image: pulled.ImageRef})
	if err == nil {
		var times map[string][]float64
		if times, err = lists(ctx, runtime, pods, rounds); err == nil {
			err = json.NewEncoder(os.Stdout).Encode(map[string]any{"starts": starts, "lists": times})
		}
	}
	if err == nil {
		_, err = io.Copy(io.Discard, os.Stdin)
	}
	if removed := remove(ctx, runtime); err == nil {
		err = removed
	}
	return err
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("density: ")
	endpoint := flag.String("endpoint", "", "`address` of the runtime")
	pods := flag.Int("pods", 110, "`number` of pods")
	rounds := flag.Int("lists", 20, "`number` of calls of each List method")
	image := flag.String("image", "registry.k8s.io/e2e-test-images/busybox:1.29-2", "`image` of the containers")
	flag.Parse()
	connection, err := grpc.NewClient(*endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		runtime, images := cri.NewRuntimeServiceClient(connection), cri.NewImageServiceClient(connection)
		err = run(runtime, images, *pods, *rounds, *image)
	}
	if err != nil {
		log.Fatal(err)
	}
}
