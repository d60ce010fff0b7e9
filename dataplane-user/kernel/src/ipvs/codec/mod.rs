//! Messages of the IPVS family (include/uapi/linux/ip_vs.h): requests as bytes, answers as values. Pure.
//!
//! An answer that cannot be read whole counts as none: a service or destination may be written back as it was read, and must
//! not lose an attribute on the way.

mod decode;
mod encode;

pub(super) use decode::{
    parse_destination, parse_destination_address, parse_family_number, parse_service, parse_service_key,
};
pub(super) use encode::{Request, family_request};

const FAMILY_NAME: &str = "IPVS";
const FAMILY_VERSION: u8 = 1;

// The controller of generic netlink (include/uapi/linux/genetlink.h): GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_*.
const CONTROLLER: u16 = 0x10;
const GET_FAMILY: u8 = 3;
const CONTROLLER_ID: u16 = 1;
const CONTROLLER_NAME: u16 = 2;
/// Length of `struct genlmsghdr`.
const HEADER_LEN: usize = 4;

// IPVS_CMD_ATTR_*
const SERVICE: u16 = 1;
const DESTINATION: u16 = 2;

// IPVS_SVC_ATTR_*
const SERVICE_FAMILY: u16 = 1;
const SERVICE_PROTOCOL: u16 = 2;
const SERVICE_ADDRESS: u16 = 3;
const SERVICE_PORT: u16 = 4;
const SERVICE_MARK: u16 = 5;
const SERVICE_SCHEDULER: u16 = 6;
const SERVICE_FLAGS: u16 = 7;
const SERVICE_TIMEOUT: u16 = 8;
const SERVICE_NETMASK: u16 = 9;
const SERVICE_STATS: u16 = 10;
const SERVICE_PERSISTENCE_ENGINE: u16 = 11;
const SERVICE_STATS64: u16 = 12;

// IPVS_DEST_ATTR_*. Linux has the tunnel's attributes since 5.3. STATS (10) and STATS64 (12) are left out: see `Destination`.
const DESTINATION_ADDRESS: u16 = 1;
const DESTINATION_PORT: u16 = 2;
const DESTINATION_FORWARD: u16 = 3;
const DESTINATION_WEIGHT: u16 = 4;
const DESTINATION_UPPER: u16 = 5;
const DESTINATION_LOWER: u16 = 6;
const DESTINATION_ACTIVE: u16 = 7;
const DESTINATION_INACTIVE: u16 = 8;
const DESTINATION_PERSISTENT: u16 = 9;
const DESTINATION_FAMILY: u16 = 11;
const DESTINATION_TUNNEL_KIND: u16 = 13;
const DESTINATION_TUNNEL_PORT: u16 = 14;
const DESTINATION_TUNNEL_FLAGS: u16 = 15;
