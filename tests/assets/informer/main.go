// The informer is a client of the API server that keeps all Services and EndpointSlices in memory, as controllers that are written with client-go do.
// It asks for JSON. `cargo xtask bench kubernetes` compares the agent with it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

const library = "k8s.io/client-go"

func main() {
	kubeconfig := flag.String("kubeconfig", "", "file that says how the API server is reached")
	isAskedForVersion := flag.Bool("version", false, "print the version of client-go")
	flag.Parse()
	if *isAskedForVersion {
		fmt.Println("informer", version())
		return
	}
	if err := run(*kubeconfig); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// run prints a line once all objects are there, and stays until it is told to end.
func run(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.ContentType = runtime.ContentTypeJSON
	config.AcceptContentTypes = runtime.ContentTypeJSON
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	factory := informers.NewSharedInformerFactory(client, 0)
	services := factory.Core().V1().Services().Informer()
	slices := factory.Discovery().V1().EndpointSlices().Informer()
	factory.Start(ctx.Done())
	for kind, isSynced := range factory.WaitForCacheSync(ctx.Done()) {
		if !isSynced {
			return fmt.Errorf("%v: not synced", kind)
		}
	}
	fmt.Println("synced", len(services.GetStore().ListKeys()), "services", len(slices.GetStore().ListKeys()), "slices")
	<-ctx.Done()
	return nil
}

func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, module := range info.Deps {
		if module.Path == library {
			return module.Version
		}
	}
	return ""
}
