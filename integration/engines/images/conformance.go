package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Parts of the images of the conformance cases.
type conformance struct {
	base, nginx                              v1.Image
	root                                     v1.Layer
	agnhost, noNewPrivs, pause, etcd, sample entry
}

// Puts the images of the conformance cases of Kubernetes 1.37, which test/utils/image/manifest.go lists.
func putConformance(put func(reference string, image v1.Image), from conformance) {
	put(e2e+"busybox:1.37.0-2", from.base)
	for _, tag := range []string{"1.27.0-2", "1.28.0-2"} {
		put(e2e+"nginx:"+tag, from.nginx)
	}
	pause := image(v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535"}, files(from.pause))
	put("pause:3.10.2", pause)
	put("etcd:3.7.0-0", image(v1.Config{}, files(from.etcd)))
	put(e2e+"sample-apiserver:1.29.2", image(v1.Config{Entrypoint: []string{"/sample-apiserver"}}, files(from.sample)))
	put(e2e+"nonewprivs:1.4", with(from.base, v1.Config{Cmd: []string{"nnp"}}, files(from.noNewPrivs)))
	put(e2e+"nonroot:1.5", with(from.base, v1.Config{User: "1234"}))

	// Debian's nc has the options of netcat-openbsd; busybox's nc has different options.
	tools := with(from.base, v1.Config{}, from.root, files(
		entry{name: "bin/nc", link: "/bin/nc.openbsd"},
		entry{name: "etc/nsswitch.conf", mode: 0o644, content: "hosts: files dns\n"},
	))
	put(e2e+"glibc-dns-testing:2.1.1", tools)
	put(e2e+"ipc-utils:1.4", tools)
	certificate, key := certificate()
	agnhost := with(tools, v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}, files(
		entry{name: "uploads/", mode: 0o755},
		from.agnhost,
		entry{name: "agnhost-2", link: "agnhost"},
		entry{name: "localhost.crt", mode: 0o644, content: certificate},
		entry{name: "localhost.key", mode: 0o644, content: key},
		entry{name: "etc/passwd", mode: 0o644, content: "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n" +
			"user-defined-in-image:x:1000:1000::/home/user-defined-in-image:/bin/sh\n"},
		// A conformance case reads this name.
		entry{name: "etc/os-release", mode: 0o644, content: "NAME=\"Alpine Linux\"\n"},
		entry{name: "etc/group", mode: 0o644, content: "root:x:0:root\nnobody:x:65534:\nuser-defined-in-image:x:1000:\n" +
			"group-defined-in-image:x:50000:user-defined-in-image\n"},
	), files(stored(pause, "pause", "testing")...))
	for _, tag := range []string{"2.55", "2.66.1"} {
		put(e2e+"agnhost:"+tag, agnhost)
	}
	for _, name := range []string{"kitten", "nautilus"} {
		content := files(entry{name: name + ".jpg", mode: 0o644, content: name},
			entry{name: "data.json", mode: 0o644, content: "{\"image\": \"" + name + ".jpg\"}\n"})
		put(e2e+name+":1.8", with(agnhost, v1.Config{Cmd: []string{"test-webserver"}}, content))
	}
}

// Returns the files that `agnhost fake-registry-server` serves as an image.
func stored(image v1.Image, name, tag string) []entry {
	var entries []entry
	add := func(kind string, digest v1.Hash, content []byte) {
		path := fmt.Sprintf("var/registry/%s/%s/%s/%s/%s/data", name, kind, digest.Algorithm, digest.Hex[:2], digest.Hex)
		entries = append(entries, entry{name: path, mode: 0o644, content: string(content)})
	}
	digest, err := image.Digest()
	check(err)
	manifest, err := image.RawManifest()
	check(err)
	add("manifests", digest, manifest)
	config, err := image.ConfigName()
	check(err)
	content, err := image.RawConfigFile()
	check(err)
	add("blobs", config, content)
	layers, err := image.Layers()
	check(err)
	for _, layer := range layers {
		digest, err := layer.Digest()
		check(err)
		reader, err := layer.Compressed()
		check(err)
		content, err := io.ReadAll(reader)
		check(err)
		add("blobs", digest, content)
	}
	path := fmt.Sprintf("var/registry/%s/manifests/%s", name, tag)
	return append(entries, entry{name: path, mode: 0o644, content: digest.String()})
}

// Returns a self-signed certificate for localhost, and its key, as `agnhost porter` serves them. No client verifies the
// certificate.
func certificate() (certificate, key string) {
	pair, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(err)
	template := x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
	}
	signed, err := x509.CreateCertificate(rand.Reader, &template, &template, &pair.PublicKey, pair)
	check(err)
	private, err := x509.MarshalPKCS8PrivateKey(pair)
	check(err)
	encode := func(kind string, bytes []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}))
	}
	return encode("CERTIFICATE", signed), encode("PRIVATE KEY", private)
}
