//! Who is who in a test cluster: an authority, certificates by which the cluster's programs know
//! each other, and the files (kubeconfig) by which they find the API server.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};

/// The cluster's authority.
pub(super) struct Authority {
    folder: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// Makes one whose files lie in `folder`.
    pub(super) fn new(folder: &Path) -> Result<Authority> {
        fs::create_dir_all(folder)?;
        let mut params = CertificateParams::new(Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test cluster");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        fs::write(folder.join("authority.crt"), issuer.pem())?;
        let accounts = KeyPair::generate()?;
        fs::write(folder.join("accounts.key"), accounts.serialize_pem())?;
        fs::write(folder.join("accounts.pub"), accounts.public_key_pem())?;
        Ok(Authority { folder: folder.to_owned(), issuer })
    }

    pub(super) fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Writes `NAME.crt` and `NAME.key`, for a user of a group or for a server with host names.
    pub(super) fn issue(&self, name: &str, user: &str, group: &str, hosts: &[&str]) -> Result<()> {
        let mut params = CertificateParams::new(hosts.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, user);
        if !group.is_empty() {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        fs::write(self.file(&format!("{name}.crt")), certificate.pem())?;
        fs::write(self.file(&format!("{name}.key")), key.serialize_pem())?;
        Ok(())
    }

    /// Issues a certificate to a client of the API server, and writes its `NAME.conf`.
    pub(super) fn client(&self, name: &str, user: &str, group: &str, api_server: &str) -> Result<String> {
        self.issue(name, user, group, &[])?;
        let config = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "test", "cluster": {
                "server": api_server, "certificate-authority": self.file("authority.crt"),
            } }],
            "users": [{ "name": name, "user": {
                "client-certificate": self.file(&format!("{name}.crt")),
                "client-key": self.file(&format!("{name}.key")),
            } }],
            "contexts": [{ "name": "test", "context": { "cluster": "test", "user": name } }],
            "current-context": "test",
        });
        let file = self.file(&format!("{name}.conf"));
        fs::write(&file, config.to_string())?;
        Ok(file)
    }
}
