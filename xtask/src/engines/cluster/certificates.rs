//! Certificates of the control plane, made by openssl: a CA, a second CA for the API server's calls of metrics-server,
//! and the certificates of servers and clients. Cases issue further certificates with a different expiry.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::engines::room;
use crate::engines::site::{ADDRESS, Site};
use crate::workspace::{output, run};

/// First address in the range for Services: the address of the API server in pods.
pub(super) const API_SERVICE: &str = "10.96.0.1";

/// Makes CAs and certificates in the working directory. Each line of standard input has a name, a CA, a subject, an
/// extended key usage and names of the server.
const SCRIPT: &str = r#"key="-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
for ca in ca front-proxy-ca; do
    openssl req -x509 $key -days 30 -subj "/CN=$ca" -keyout $ca.key -out $ca.crt -addext keyUsage=critical,keyCertSign
done
while read -r name ca subject usage names; do
    openssl req -new $key -subj "$subject" -keyout $name.key -out $name.csr
    printf 'keyUsage=critical,digitalSignature\nextendedKeyUsage=%s\n' $usage >$name.ext
    [ -z "$names" ] || echo "subjectAltName=$names" >>$name.ext
    openssl x509 -req -days 30 -in $name.csr -CA $ca.crt -CAkey $ca.key -CAcreateserial -extfile $name.ext -out $name.crt
done
openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out accounts.key
openssl pkey -in accounts.key -pubout -out accounts.pub"#;

/// Issues a certificate of the CA `ca` in the working directory: `$1` is the name of the certificate's files, `$2` the
/// subject, `$3` the extensions, and `$4` the end of the validity, as an argument of date. The existing key is kept.
const ISSUE: &str = r#"[ -e $1.key ] || openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out $1.key
openssl req -new -key $1.key -subj "$2" -out $1.csr
printf '%s\n' '[all]' 'commonName = supplied' 'organizationName = optional' '[one]' 'policy = all' "database = $1.issued" \
    "serial = $1.serial" 'default_md = sha256' 'new_certs_dir = .' 'unique_subject = no' 'x509_extensions = leaf' '[leaf]' \
    'keyUsage = critical,digitalSignature' "$3" >$1.conf
: >$1.issued
time() { date --utc --date "$1" +%Y%m%d%H%M%SZ; }
openssl ca -batch -config $1.conf -name one -cert ca.crt -keyfile ca.key -rand_serial -notext -preserveDN \
    -startdate $(time '-1 hour') -enddate $(time "$4") -in $1.csr -out $1.new
mv $1.new $1.crt"#;

/// Makes all keys and certificates in the directory `pki` of the first node, and moves the files of each kubelet to the
/// directory `pki` of its node.
pub(super) fn make(directory: &Path, sites: &[Arc<Site>]) -> anyhow::Result<()> {
    let pki = directory.join("pki");
    fs::create_dir(&pki)?;
    room::make_private(&pki)?;
    let service = "kubernetes.default";
    let api = format!(
        "DNS:kubernetes,DNS:{service},DNS:{service}.svc,DNS:{service}.svc.cluster.local,IP:{API_SERVICE},IP:{ADDRESS}"
    );
    let node = |site: &Arc<Site>| {
        let (name, address) = (&site.name, &site.address);
        format!(
            "{name}-server ca /CN=kubelet serverAuth DNS:{name},IP:{address}
{name} ca /O=system:nodes/CN=system:node:{name} clientAuth
"
        )
    };
    let nodes: String = sites.iter().map(node).collect();
    let list = format!(
        "apiserver ca /CN=kube-apiserver serverAuth {api}
admin ca /O=system:masters/CN=admin clientAuth
apiserver-kubelet ca /O=system:masters/CN=kube-apiserver-kubelet-client clientAuth
controller-manager ca /CN=system:kube-controller-manager clientAuth
scheduler ca /CN=system:kube-scheduler clientAuth
front-proxy front-proxy-ca /CN=front-proxy-client clientAuth
{nodes}"
    );
    let (input, log) = (pki.join("list"), fs::File::create(directory.join("openssl.log"))?);
    fs::write(&input, list)?;
    let mut command = Command::new("sh");
    command.args(["-ec", SCRIPT]).current_dir(&pki).stdin(fs::File::open(&input)?);
    run(command.stdout(log.try_clone()?).stderr(log))?;
    for site in sites {
        let own = site.directory.join("pki");
        fs::create_dir_all(&own)?;
        room::make_private(&own)?;
        for (from, to) in [("", "kubelet"), ("-server", "kubelet-server")] {
            for end in ["crt", "key"] {
                fs::rename(pki.join(format!("{}{from}.{end}", site.name)), own.join(format!("{to}.{end}")))?;
            }
        }
        if own != pki {
            fs::copy(pki.join("ca.crt"), own.join("ca.crt"))?;
        }
    }
    Ok(())
}

/// Issues a certificate while the cluster runs, and replaces `NAME.crt` in the directory `pki` of the first node. `end`
/// is the end of the validity, as an argument of date: `+60 seconds`.
pub(super) fn issue(pki: &Path, name: &str, subject: &str, extensions: &str, end: &str) -> anyhow::Result<()> {
    let mut command = Command::new("sh");
    command.args(["-ec", ISSUE, "sh", name, subject, extensions, end]).current_dir(pki);
    output(&mut command).map(drop)
}
