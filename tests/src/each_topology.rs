//! The topologies in which a matrix of checks runs. Each topology is a test, with the same name in every file that uses the list.

/// Makes a test of each topology that this machine's kernel can always build; `$matrix` is a function of [`Options`](crate::Options).
#[macro_export]
macro_rules! each_topology {
    ($matrix:path) => {
        $crate::each_topology! {
            @ $matrix;
            host_gateway {}
            host_gateway_without_masquerade { masquerade: false }
            host_gateway_without_offloads { offloads: false }
            vxlan { overlay: $crate::Overlay::Vxlan }
            vxlan_without_masquerade { overlay: $crate::Overlay::Vxlan, masquerade: false }
            vxlan_metadata { overlay: $crate::Overlay::VxlanMetadata }
            tun { overlay: $crate::Overlay::Tun }
        }
    };
    (@ $matrix:path; $($name:ident { $($field:ident: $value:expr),* })*) => {$(
        #[test]
        fn $name() -> ::anyhow::Result<()> {
            $matrix($crate::Options { $($field: $value,)* ..$crate::Options::default() })
        }
    )*};
}
