// codeQ's own Go SDK against a server of ours. test_codeq_sdk.py puts this file into a copy of codeQ, and says where the server is.
package codeq

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/osvaldoandrade/codeq/pkg/producerclient"
	"github.com/osvaldoandrade/codeq/pkg/workerclient"
)

const patience = 60 * time.Second

var (
	address  = os.Getenv("CHARGEHAND_GRPC")
	producer = os.Getenv("CHARGEHAND_PRODUCER_TOKEN")
	worker   = os.Getenv("CHARGEHAND_WORKER_TOKEN")
)

func produce(t *testing.T) *producerclient.Session {
	t.Helper()
	client, err := producerclient.New(producerclient.Config{Addr: address, Token: producer})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	session, err := client.Connect(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// work hands tasks to the handler until it has seen as many as wanted.
func work(t *testing.T, config workerclient.Config, wanted int, handler workerclient.Handler) {
	t.Helper()
	config.Addr, config.Token = address, worker
	client, err := workerclient.New(config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var lock sync.Mutex
	seen := 0
	done := make(chan struct{})
	go func() {
		_ = client.Run(ctx, func(ctx context.Context, task workerclient.Task) workerclient.Result {
			result := handler(ctx, task)
			lock.Lock()
			defer lock.Unlock()
			if seen++; seen == wanted {
				close(done)
			}
			return result
		})
	}()
	select {
	case <-done:
		time.Sleep(300 * time.Millisecond) // the SDK sends the last result behind the handler's back and tells nobody
	case <-ctx.Done():
		t.Fatalf("%d of %d tasks came", seen, wanted)
	}
}

func command(t *testing.T) string { return strings.ReplaceAll(t.Name(), "/", "-") }

func TestATaskGoesFromTheProducerToTheWorker(t *testing.T) {
	session := produce(t)
	id, err := session.Produce(context.Background(), producerclient.CreateRequest{
		Command: command(t), Payload: []byte(`{"k":"v"}`), Priority: 1, MaxAttempts: 3,
	})
	if err != nil {
		t.Fatal(err)
	}
	work(t, workerclient.Config{Commands: []string{command(t)}, LeaseSeconds: 60}, 1,
		func(_ context.Context, task workerclient.Task) workerclient.Result {
			if task.ID != id || task.Command != command(t) || string(task.Payload) != `{"k":"v"}` {
				t.Errorf("another task came: %+v", task)
			}
			if task.Priority != 1 || task.MaxAttempts != 3 || task.Attempts != 1 || task.TenantID == "" || task.LeaseUntil == "" {
				t.Errorf("fields are missing: %+v", task)
			}
			return workerclient.Completed(map[string]any{"ok": true})
		})
}

func TestManyCallersShareAStream(t *testing.T) {
	session := produce(t)
	const callers, each = 16, 25
	ids := sync.Map{}
	var group sync.WaitGroup
	for caller := range callers {
		group.Add(1)
		go func() {
			defer group.Done()
			for number := range each {
				payload := fmt.Appendf(nil, `{"n":%d}`, caller*each+number)
				id, err := session.Produce(context.Background(), producerclient.CreateRequest{Command: command(t), Payload: payload})
				if err != nil {
					t.Error(err)
					return
				}
				ids.Store(id, true)
			}
		}()
	}
	group.Wait()
	work(t, workerclient.Config{Commands: []string{command(t)}, Concurrency: 8, BatchSize: 10}, callers*each,
		func(_ context.Context, task workerclient.Task) workerclient.Result {
			if _, known := ids.LoadAndDelete(task.ID); !known {
				t.Errorf("task %s came twice, or is none of ours", task.ID)
			}
			return workerclient.Completed(map[string]any{"id": task.ID})
		})
}

func TestABatchIsAcknowledgedOneByOne(t *testing.T) {
	session := produce(t)
	results, err := session.ProduceBatch(context.Background(), []producerclient.CreateRequest{
		{Command: command(t), Payload: []byte(`1`)},
		{Command: "", Payload: []byte(`2`)},
		{Command: command(t), Payload: []byte(`3`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	if results[0].Err != nil || results[1].Err == nil || results[2].Err != nil {
		t.Fatalf("%+v", results)
	}
}

func TestAWorkerMayCompleteFailNackAndAbandon(t *testing.T) {
	session := produce(t)
	for _, fate := range []string{"complete", "fail", "nack", "abandon"} {
		payload, _ := json.Marshal(map[string]string{"fate": fate})
		request := producerclient.CreateRequest{Command: command(t), Payload: payload, MaxAttempts: 5}
		if _, err := session.Produce(context.Background(), request); err != nil {
			t.Fatal(err)
		}
	}
	var lock sync.Mutex
	seen := map[string]int{}
	// The two that go back come a second time.
	work(t, workerclient.Config{Commands: []string{command(t)}, Concurrency: 2}, 6,
		func(_ context.Context, task workerclient.Task) workerclient.Result {
			var payload struct{ Fate string }
			_ = json.Unmarshal(task.Payload, &payload)
			lock.Lock()
			seen[payload.Fate]++
			again := seen[payload.Fate] > 1
			lock.Unlock()
			switch {
			case payload.Fate == "fail":
				return workerclient.Failed("intentional")
			case payload.Fate == "nack" && !again:
				return workerclient.Nack(0, "again")
			case payload.Fate == "abandon" && !again:
				return workerclient.Abandon()
			}
			return workerclient.Completed(map[string]any{"ok": true})
		})
	if fmt.Sprint(seen) != "map[abandon:2 complete:1 fail:1 nack:2]" {
		t.Errorf("%v", seen)
	}
}

func TestAWrongTokenIsRefused(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	of, err := producerclient.New(producerclient.Config{Addr: address, Token: "wrong"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = of.Close() }()
	if _, err := of.Connect(ctx); err == nil || !strings.Contains(err.Error(), "Unauthenticated") {
		t.Errorf("%v", err)
	}
	client, err := workerclient.New(workerclient.Config{Addr: address, Token: "wrong"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	nothing := func(context.Context, workerclient.Task) workerclient.Result { return workerclient.Abandon() }
	if err := client.Run(ctx, nothing); err == nil || !strings.Contains(err.Error(), "Unauthenticated") {
		t.Errorf("%v", err)
	}
}

func TestAnIdleWorkerIsNotForgotten(t *testing.T) {
	seconds, _ := time.ParseDuration(os.Getenv("CHARGEHAND_IDLE"))
	session := produce(t)
	go func() {
		time.Sleep(seconds) // codeQ forgets a worker that waited for 30 seconds
		_, _ = session.Produce(context.Background(), producerclient.CreateRequest{Command: command(t), Payload: []byte(`1`)})
	}()
	work(t, workerclient.Config{Commands: []string{command(t)}}, 1,
		func(context.Context, workerclient.Task) workerclient.Result {
			return workerclient.Completed(map[string]any{})
		})
}

// One task from 32 callers on a producer's stream through 32 slots of a worker's stream. Against codeQ itself too:
// CHARGEHAND_GRPC names the producers' address and CHARGEHAND_GRPC_WORKER the workers'.
func BenchmarkCycle(b *testing.B) {
	for _, batch := range []int{1, 32} {
		b.Run(fmt.Sprintf("batch-%d", batch), func(b *testing.B) { cycle(b, batch) })
	}
}

func cycle(b *testing.B, batch int) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*patience)
	defer cancel()
	name := fmt.Sprintf("bench-%d-%d-%d", os.Getpid(), batch, b.N)
	workers := address
	if other := os.Getenv("CHARGEHAND_GRPC_WORKER"); other != "" {
		workers = other
	}
	client, err := workerclient.New(workerclient.Config{
		Addr: workers, Token: worker, Commands: []string{name}, Concurrency: 32, BatchSize: batch,
	})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	left := int64(b.N)
	done := make(chan struct{})
	go func() {
		_ = client.Run(ctx, func(context.Context, workerclient.Task) workerclient.Result {
			if atomic.AddInt64(&left, -1) == 0 {
				close(done)
			}
			return workerclient.Completed(map[string]any{"ok": true})
		})
	}()
	producers, err := producerclient.New(producerclient.Config{Addr: address, Token: producer})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = producers.Close() }()
	session, err := producers.Connect(ctx)
	if err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	var group sync.WaitGroup
	var made int64
	for range 32 {
		group.Add(1)
		go func() {
			defer group.Done()
			for {
				first := atomic.AddInt64(&made, int64(batch)) - int64(batch)
				if first >= int64(b.N) {
					return
				}
				requests := make([]producerclient.CreateRequest, min(int64(batch), int64(b.N)-first))
				for i := range requests {
					requests[i] = producerclient.CreateRequest{Command: name, Payload: []byte(`{"n":1}`)}
				}
				if _, err := session.ProduceBatch(ctx, requests); err != nil {
					b.Error(err)
					return
				}
			}
		}()
	}
	group.Wait()
	<-done
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "cycles/s")
}
