// The snapshotter plugin of stargz-snapshotter for containerd, with its default settings, on a Unix socket.
//
//	stargz SOCKET DIRECTORY [CHUNK]
//
// With CHUNK it fetches what is read, in pieces of so many bytes, and nothing else: it neither prefetches, nor fetches
// layers in the background.
//
// Debian packages the library and ctr-remote, but not the daemon containerd-stargz-grpc, whose other parts (credentials
// from Kubernetes) need libraries that are not packaged. Registries on loopback are asked without TLS.
package main

import (
	"context"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	api "github.com/containerd/containerd/api/services/snapshots/v1"
	"github.com/containerd/containerd/contrib/snapshotservice"
	"github.com/containerd/containerd/reference"
	"github.com/containerd/containerd/remotes/docker"
	"github.com/containerd/stargz-snapshotter/fs"
	"github.com/containerd/stargz-snapshotter/fs/config"
	"github.com/containerd/stargz-snapshotter/fs/source"
	"github.com/containerd/stargz-snapshotter/snapshot"
	"google.golang.org/grpc"
)

func main() {
	address, root := os.Args[1], os.Args[2]
	hosts := docker.ConfigureDefaultRegistries(
		docker.WithPlainHTTP(docker.MatchLocalhost),
		docker.WithClient(&http.Client{Transport: http.DefaultTransport}),
	)
	sources := source.FromDefaultLabels(func(ref reference.Spec) ([]docker.RegistryHost, error) {
		return hosts(ref.Hostname())
	})
	settings := config.Config{}
	if len(os.Args) > 3 {
		chunk, err := strconv.ParseInt(os.Args[3], 10, 64)
		if err != nil {
			log.Fatal(err)
		}
		settings = config.Config{NoPrefetch: true, NoBackgroundFetch: true, BlobConfig: config.BlobConfig{ChunkSize: chunk}}
	}
	layers, err := fs.NewFilesystem(filepath.Join(root, "stargz"), settings, fs.WithGetSources(sources))
	if err != nil {
		log.Fatal(err)
	}
	snapshots, err := snapshot.NewSnapshotter(context.Background(), filepath.Join(root, "snapshotter"), layers)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("unix", address)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer()
	api.RegisterSnapshotsServer(server, snapshotservice.FromSnapshotter(snapshots))
	log.Fatal(server.Serve(listener))
}
