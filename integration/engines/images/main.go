// Images makes the images that critest and the pods of the kubelet pull, and serves them on loopback until its standard
// input is closed.
//
// It serves the repositories of every registry under one address: a runtime is configured to use this address in place
// of registry.k8s.io, k8s.gcr.io and gcr.io.
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

const (
	e2e   = "e2e-test-images/"
	tests = "k8s-staging-cri-tools/"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("images: ")
	listen := flag.String("listen", "127.0.0.1:0", "`address` to serve on")
	busybox := flag.String("busybox", "", "`file`: a static busybox whose shell runs no applet by itself")
	web := flag.String("web", "", "`file`: archive of a root file system with nginx and apache2")
	noNewPrivs := flag.String("nonewprivs", "", "`file`: the program that prints its effective user id")
	pause := flag.String("pause", "", "`file`: the program that waits")
	health := flag.String("health", "", "`file`: the program that serves gRPC's health service")
	dns := flag.String("dns", "", "`file`: CoreDNS")
	kubectl := flag.String("kubectl", "", "`file`: kubectl")
	metrics := flag.String("metrics", "", "`file`: metrics-server")
	proxy := flag.String("proxy", "", "`file`: kube-proxy")
	proxyRoot := flag.String("proxy-root", "", "`file`: archive of a root file system with nftables, for kube-proxy")
	agnhost := flag.String("agnhost", "", "`file`: the program of Kubernetes' test images")
	agnhostRoot := flag.String("agnhost-root", "", "`file`: archive of a root file system with the tools of agnhost")
	etcd := flag.String("etcd", "", "`file`: etcd")
	sample := flag.String("sample-apiserver", "", "`file`: Kubernetes' example of an API server")
	flag.Parse()

	listener, err := net.Listen("tcp", *listen)
	check(err)
	go func() { log.Fatal(http.Serve(listener, registry.New(registry.Logger(log.New(io.Discard, "", 0))))) }()
	address := listener.Addr().String()
	put := func(reference string, image v1.Image) {
		tag, err := name.NewTag(address+"/"+reference, name.Insecure)
		check(err)
		check(remote.Write(tag, image))
	}

	base := image(v1.Config{Cmd: []string{"sh"}, Env: []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}},
		busyboxRoot(*busybox))
	put(e2e+"busybox:1.29-2", base)
	put("pause:3.9", image(v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535"}, files(program("pause", *pause, 0o755))))
	put(e2e+"nonewprivs:1.3",
		image(v1.Config{Entrypoint: []string{"/nonewprivs"}}, files(program("nonewprivs", *noNewPrivs, 0o4755))))
	put(e2e+"health:1", image(v1.Config{Entrypoint: []string{"/health"}}, files(program("health", *health, 0o755))))
	for repository, user := range map[string]string{
		"user-uid": "1002", "user-uid-group": "1003:1004", "user-username": "www-data", "user-username-group": "www-data:1004",
		"predefined-group": "1000",
	} {
		put(tests+"test-image-"+repository+":latest", with(base, v1.Config{User: user}))
	}
	for reference, file := range map[string]string{
		"1:latest": "1", "2:latest": "2", "3:latest": "3", "latest:latest": "latest", "digest:latest": "digest",
		"tag:test": "test", "tag:all": "all", "tags:1": "same", "tags:2": "same", "tags:3": "same",
	} {
		put(tests+"test-image-"+reference, with(base, v1.Config{}, files(entry{name: "test-image-" + file, mode: 0o644})))
	}

	nginxRoot, err := tarball.LayerFromFile(*web)
	check(err)
	nginx := v1.Config{Cmd: []string{"nginx", "-g", "daemon off;"}}
	put(e2e+"nginx:1.14-2", with(base, nginx, nginxRoot, nginxConfiguration(80)))
	put(tests+"hostnet-nginx-"+runtime.GOARCH+":latest", with(base, nginx, nginxRoot, nginxConfiguration(12003)))
	put(e2e+"httpd:2.4.39-4", with(base, v1.Config{Cmd: []string{"httpd", "-DFOREGROUND", "-f", "/etc/httpd.conf"}}, nginxRoot, files(
		entry{name: "usr/local/bin/httpd", link: "/usr/sbin/apache2"},
		entry{name: "var/www/html/index.html", mode: 0o644, content: "It works!\n"},
		entry{name: "etc/httpd.conf", mode: 0o644, content: httpd},
	)))

	for reference, path := range map[string]string{
		"coredns/coredns:v1.15.0": *dns, "kubectl:v1.37.0": *kubectl, "metrics-server/metrics-server:v0.9.0": *metrics,
	} {
		if path != "" {
			put(reference, image(v1.Config{Entrypoint: []string{"/program"}},
				files(entry{name: "tmp/", mode: 0o1777}, program("program", path, 0o755))))
		}
	}
	if *proxy != "" {
		root, err := tarball.LayerFromFile(*proxyRoot)
		check(err)
		path := []string{"PATH=/usr/sbin:/usr/bin"}
		put("kube-proxy:v1.37.0", image(v1.Config{Entrypoint: []string{"/usr/local/bin/kube-proxy"}, Env: path},
			root, files(program("usr/local/bin/kube-proxy", *proxy, 0o755))))
	}

	if *agnhost != "" {
		root, err := tarball.LayerFromFile(*agnhostRoot)
		check(err)
		putConformance(put, conformance{
			base: base, nginx: with(base, nginx, nginxRoot, nginxConfiguration(80)), root: root,
			agnhost:    program("agnhost", *agnhost, 0o755),
			noNewPrivs: program("usr/local/bin/nnp", *noNewPrivs, 0o6755),
			pause:      program("pause", *pause, 0o755),
			etcd:       program("usr/local/bin/etcd", *etcd, 0o755),
			sample:     program("sample-apiserver", *sample, 0o755),
		})
	}

	fmt.Println(address)
	_, err = io.Copy(io.Discard, os.Stdin)
	check(err)
}

func nginxConfiguration(port int) v1.Layer {
	return files(
		entry{name: "usr/share/nginx/html/index.html", mode: 0o644, content: "Welcome to nginx!\n"},
		entry{name: "etc/nginx/nginx.conf", mode: 0o644, content: fmt.Sprintf(`user www-data;
pid /var/run/nginx.pid;
error_log /dev/stderr;
events {}
http {
    access_log /dev/stdout;
    server {
        listen %d;
        root /usr/share/nginx/html;
    }
}
`, port)},
	)
}

// Without a configured ServerName, the server prints its name in its first log message.
const httpd = `ServerRoot "/usr/lib/apache2"
LoadModule mpm_event_module modules/mod_mpm_event.so
LoadModule authz_core_module modules/mod_authz_core.so
LoadModule dir_module modules/mod_dir.so
Listen 80
User www-data
Group www-data
PidFile /var/run/httpd.pid
Mutex file:/tmp
ErrorLog /dev/stderr
DocumentRoot "/var/www/html"
<Directory "/var/www/html">
    Require all granted
</Directory>
`

// An entry of a layer: a directory (its name ends in a slash), a symbolic link (link is set), a hard link (same is
// set), or a file.
type entry struct {
	name    string
	mode    int64
	content string
	link    string
	same    string
}

func program(name, path string, mode int64) entry {
	content, err := os.ReadFile(path)
	check(err)
	return entry{name: name, mode: mode, content: string(content)}
}

// Returns the root file system of the image that most test cases use: busybox, and the users that other images name.
func busyboxRoot(path string) v1.Layer {
	busybox := program("bin/busybox", path, 0o755)
	entries := []entry{
		{name: "bin/", mode: 0o755}, {name: "etc/", mode: 0o755}, {name: "root/", mode: 0o700}, {name: "tmp/", mode: 0o1777},
		{name: "home/", mode: 0o755}, {name: "var/", mode: 0o755}, {name: "var/run/", mode: 0o755}, {name: "var/www/", mode: 0o755},
		{name: "usr/", mode: 0o755}, {name: "usr/bin/", mode: 0o755}, {name: "usr/local/bin/", mode: 0o755},
		{name: "etc/passwd", mode: 0o644, content: "root:x:0:0:root:/root:/bin/sh\nbin:x:2:2:bin:/bin:/bin/false\n" +
			"www-data:x:33:33:www-data:/var/www:/bin/false\nnobody:x:65534:65534:nobody:/home:/bin/false\n" +
			"default-user:x:1000:1000::/home:/bin/sh\n"},
		{name: "etc/group", mode: 0o644, content: "root:x:0:\nbin:x:2:\nwww-data:x:33:\nnogroup:x:65534:\ndefault-user:x:1000:\n" +
			"group-defined-in-image:x:50000:default-user\n"},
		busybox,
	}
	applets, err := exec.Command(path, "--list").Output()
	check(err)
	// Hard links, because a test case masks the path of one program. If that path were a symbolic link, all programs would
	// be masked.
	for _, applet := range strings.Fields(string(applets)) {
		entries = append(entries, entry{name: "bin/" + applet, mode: busybox.mode, same: busybox.name})
	}
	return files(entries...)
}

func files(entries ...entry) v1.Layer {
	var archive bytes.Buffer
	writer := tar.NewWriter(&archive)
	for _, entry := range entries {
		header := &tar.Header{Name: entry.name, Mode: entry.mode, Typeflag: tar.TypeReg, Size: int64(len(entry.content))}
		switch {
		case entry.link != "":
			header.Typeflag, header.Mode, header.Linkname = tar.TypeSymlink, 0o777, entry.link
		case entry.same != "":
			header.Typeflag, header.Linkname = tar.TypeLink, entry.same
		case strings.HasSuffix(entry.name, "/"):
			header.Typeflag = tar.TypeDir
		}
		check(writer.WriteHeader(header))
		if header.Typeflag == tar.TypeReg {
			_, err := writer.Write([]byte(entry.content))
			check(err)
		}
	}
	check(writer.Close())
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(archive.Bytes())), nil
	})
	check(err)
	return layer
}

func image(config v1.Config, layers ...v1.Layer) v1.Image {
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: config})
	check(err)
	image, err = mutate.AppendLayers(image, layers...)
	check(err)
	return image
}

// Returns an image with further layers. If set in config, the user, the command and the entry point replace those of
// the image.
func with(base v1.Image, config v1.Config, layers ...v1.Layer) v1.Image {
	image, err := mutate.AppendLayers(base, layers...)
	check(err)
	file, err := image.ConfigFile()
	check(err)
	changed := file.Config
	if config.User != "" {
		changed.User = config.User
	}
	if config.Cmd != nil {
		changed.Cmd = config.Cmd
	}
	if config.Entrypoint != nil {
		changed.Entrypoint = config.Entrypoint
	}
	image, err = mutate.Config(image, changed)
	check(err)
	return image
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
