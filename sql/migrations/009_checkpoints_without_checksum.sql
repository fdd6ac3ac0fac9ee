-- No producer ever told a checkpoint's checksum: what a version's file and weights hash to stands in `models`.

alter table checkpoints drop column sha256;
