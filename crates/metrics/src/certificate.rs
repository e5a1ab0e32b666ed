//! When a certificate ends.

use sluice_transport::tls::ServerIdentity;
use x509_parser::prelude::{FromDer, X509Certificate};

/// The moment after which the certificate that is shown now is not valid any more (RFC 5280,
/// section 4.1.2.5), in seconds since 1970. `None` for one that cannot be parsed.
pub fn expiry_s(identity: &ServerIdentity) -> Option<i64> {
    let der = identity.certificate();
    let (_, certificate) = X509Certificate::from_der(&der).ok()?;
    Some(certificate.validity().not_after.timestamp())
}
