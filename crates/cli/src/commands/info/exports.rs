//! The exports of an NBD server.

use crate::failure::{Cause, Failure, Res};
use crate::output::Out;
use crate::quote::{JsonName, listed};
use crate::size;
use lanefs_device::{DeviceError, NbdDevice, NbdUrl, VolumeUrl};
use serde::Serialize;
use std::ffi::OsString;

/// What a server lists.
#[derive(Serialize)]
pub(super) struct Exports {
    #[serde(flatten)]
    volume: JsonName,
    exports: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    /// Bytes, if the server says.
    size: Option<u64>,
    read_only: Option<bool>,
    description: String,
}

/// Returns what the server lists, if a name is that of a server: a URL without a path.
pub(super) fn of(name: &OsString) -> Res<Option<Exports>> {
    let url = name.to_str().filter(|_| VolumeUrl::names_server(name));
    let Some(url) = url.filter(|url| NbdUrl::parse(url).is_ok_and(|url| url.export.is_none())) else {
        return Ok(None);
    };
    let failed = |e: DeviceError| {
        let cause = Cause::text(e.to_string()).without(&format!("{url}: "));
        Failure::cannot("list the exports of", url, cause)
    };
    let Some(list) = NbdDevice::list(url).map_err(failed)? else {
        let why = "the server does not tell its exports; an export is opened by its name, nbd://HOST/EXPORT";
        return Err(Failure::cannot("list the exports of", url, Cause::text(why)));
    };
    let row = |export: lanefs_device::NbdExport| Row {
        name: export.name,
        size: export.size,
        read_only: export.read_only,
        description: export.description,
    };
    let exports = list.into_iter().map(row).collect();
    Ok(Some(Exports { volume: JsonName::new(name.as_encoded_bytes()), exports }))
}

impl Exports {
    pub(super) fn show(&self, out: &mut Out) -> Res {
        for row in &self.exports {
            let size = row.size.map_or_else(|| "?".into(), size::human);
            let how = if row.read_only == Some(true) { "read-only" } else { "" };
            let line =
                format!("{size:>10} {how:<10} {}  {}", listed_name(&row.name), escaped(&row.description));
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

fn listed_name(name: &str) -> String {
    if name.is_empty() { "''".into() } else { listed(name.as_bytes()) }
}

fn escaped(text: &str) -> String {
    crate::quote::escaped(text.as_bytes())
}
