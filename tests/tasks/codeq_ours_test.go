// codeQ's own HTTP tests against a server of ours. test_codeq_sdk.py puts this file beside them in a copy of codeQ, and has them take
// this server where they took codeQ's.
package app

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/osvaldoandrade/codeq/pkg/config"
)

const scraper = "scraper-token"

// ours starts a server with the settings of codeQ's configuration and passes requests on to it.
func ours(t *testing.T, cfg *config.Config) http.Handler {
	t.Helper()
	folder := t.TempDir()
	file := filepath.Join(folder, "chargehand.toml")
	if err := os.WriteFile(file, []byte(settingsFile(cfg)), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(os.Getenv("CHARGEHAND"), "serve", "--json", "--listen", "127.0.0.1:0", "--config", file)
	command.Dir, command.Stderr = folder, os.Stderr
	said, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(syscall.SIGTERM)
		_ = command.Wait()
	})
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Fatalf("the server did not start: %v", err)
	}
	var ready struct {
		URL string `json:"url"`
	}
	if err := json.Unmarshal([]byte(line), &ready); err != nil {
		t.Fatalf("%v: %s", err, line)
	}
	target, err := url.Parse(ready.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" { // open at codeQ; here whoever scrapes has a token
			r.Header.Set("Authorization", "Bearer "+scraper)
		}
		proxy.ServeHTTP(w, r)
	})
}

func settingsFile(cfg *config.Config) string {
	return fmt.Sprintf(`
[tasks]
max_attempts = %d
[webhooks]
secret = "whsec_Y29kZVEncyBvd24gdGVzdHMgb24gb3Vycw=="
allow_networks = ["127.0.0.0/8"]
[log]
level = "error"
[inference]
embedded = "off"
[auth]
%s
[[auth.tokens]]
name = "scraper"
hash = "%s"
scopes = ["metrics"]
`, cfg.MaxAttemptsDefault, callers(cfg), hashed(scraper))
}

func callers(cfg *config.Config) string {
	if cfg.IdentityJwksURL != "" {
		return fmt.Sprintf("jwks_url = %q\njwt_issuer = %q\njwt_audience = [%q, %q]\n",
			cfg.IdentityJwksURL, cfg.IdentityIssuer, cfg.IdentityAudience, cfg.WorkerAudience)
	}
	return fmt.Sprintf("[[auth.tokens]]\nname = \"dev\"\nhash = %q\ntenant = \"dev-tenant\"\n", hashed("dev-token"))
}

func hashed(token string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(token))) }
