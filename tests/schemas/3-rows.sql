INSERT INTO "runs" VALUES('erdos-1','erdos','running','',9223372036854775807,2,2,3,'{"grid.groups":2,"model.revision":"abc"}',12.5,1,'ready',1,6,1,0,0,'',0,'discover');
INSERT INTO "runs" VALUES('first','erdos','finished','',9223372036854775807,2,2,3,'{"grid.groups":2,"model.revision":"abc"}',11.0,1,'ready',1,6,0,0,0,'',0,'discover');
INSERT INTO "releases" VALUES('erdos-1',0,-1,NULL,'',13.5);
INSERT INTO "releases" VALUES('erdos-1',1,0,'releases/0001','load-1',13.5);
INSERT INTO "releases" VALUES('first',0,-1,NULL,'',13.5);
INSERT INTO "releases" VALUES('first',1,0,'releases/0001','load-1',13.5);
INSERT INTO "steps" VALUES('erdos-1',0,'committed',0,'batches/0000.msgpack','{"tttd/step":0,"train/loss":0.5}','{"release":1,"load_id":"load-1","gap":1e-6,"floor":1e-7,"limit":0.01,"trainer_shift":0.1,"engine_shift":0.1,"share":null,"attempts":1}');
INSERT INTO "steps" VALUES('first',0,'committed',0,'batches/0000.msgpack','{"tttd/step":0,"train/loss":0.5}','{"release":1,"load_id":"load-1","gap":1e-6,"floor":1e-7,"limit":0.01,"trainer_shift":0.1,"engine_shift":0.1,"share":null,"attempts":1}');
INSERT INTO "programs" VALUES('dbe37ac31a72d7ea53b9ebee11146250c80c9f28852885229dcf56019ea1f465','x = 0
');
INSERT INTO "programs" VALUES('019e16eb838b12450ec2ecd34f174dcdcd285985b2017503f1ad4ef553ed72e7','x = (0, 0, 0)
');
INSERT INTO "programs" VALUES('ecd0f84ad34d27674952f01a4e7d5dc48ccf71e41c042acaa2d784507150e7de','x = (0, 0, 1)
');
INSERT INTO "programs" VALUES('3e654f2b4a79da728c49001b4df0658620dc9f741712ff48aab0777fd8916b05','x = (0, 0, 2)
');
INSERT INTO "programs" VALUES('4e5764f341c00705c117a0b0c51b49671445583481ba601c22d2f52dfe475f12','x = (0, 1, 0)
');
INSERT INTO "programs" VALUES('e0ccd42a19ad0c4a6257d76e2ab366a5e72f57d7b4ba81155440d6ba21ba07fd','x = (0, 1, 1)
');
INSERT INTO "programs" VALUES('c22000b80e19c73fa7b9d7db35cac6228e2b3c96c0a2fced2a7a5033dfc1689a','x = (0, 1, 2)
');
INSERT INTO "programs" VALUES('c6d643ba484f602e601b7f07c2cb4c0fcb733f281e8815f0519e20703d97dc53','x = (1, 0, 0)
');
INSERT INTO "nodes" VALUES('erdos-1',0,NULL,1,0,'dbe37ac31a72d7ea53b9ebee11146250c80c9f28852885229dcf56019ea1f465','eecfe775ab7ca17622bb85e8d65cad59555edcfc8ef3a514cb7b994d51288100','zero',1.0,0.5,3,4.0,-1,'{"exact":true}','');
INSERT INTO "nodes" VALUES('erdos-1',1,NULL,1,0,'dbe37ac31a72d7ea53b9ebee11146250c80c9f28852885229dcf56019ea1f465','eecfe775ab7ca17622bb85e8d65cad59555edcfc8ef3a514cb7b994d51288100','zero',1.0,0.5,3,4.0,-1,'{"exact":true}','');
INSERT INTO "nodes" VALUES('first',0,NULL,1,0,'dbe37ac31a72d7ea53b9ebee11146250c80c9f28852885229dcf56019ea1f465','eecfe775ab7ca17622bb85e8d65cad59555edcfc8ef3a514cb7b994d51288100','zero',1.0,0.5,3,4.0,-1,'{"exact":true}','');
INSERT INTO "nodes" VALUES('first',1,NULL,1,0,'dbe37ac31a72d7ea53b9ebee11146250c80c9f28852885229dcf56019ea1f465','eecfe775ab7ca17622bb85e8d65cad59555edcfc8ef3a514cb7b994d51288100','zero',1.0,0.5,3,4.0,-1,'{"exact":true}','');
INSERT INTO "nodes" VALUES('erdos-1',2,0,0,1,'019e16eb838b12450ec2ecd34f174dcdcd285985b2017503f1ad4ef553ed72e7','875d6be742def334e92db1cda675e5289c4d11cb0e9ff6570c2a6836cdf7c12f','',2.0,NULL,0,NULL,0,'{}','');
INSERT INTO "nodes" VALUES('erdos-1',3,0,0,0,'ecd0f84ad34d27674952f01a4e7d5dc48ccf71e41c042acaa2d784507150e7de','c56a1aa66ffbe8741c7667792ed70c106395455d6c902499e1ed95e417a52f14','',3.0,NULL,0,NULL,0,'{}','');
INSERT INTO "nodes" VALUES('erdos-1',4,0,0,0,'3e654f2b4a79da728c49001b4df0658620dc9f741712ff48aab0777fd8916b05','8cf019f36d756c12b68b1d325a75f66e9bdea442c2ac89c12f32bd6c0bb125b8','',4.0,NULL,0,NULL,0,'{}','');
INSERT INTO "nodes" VALUES('erdos-1',5,1,0,1,'4e5764f341c00705c117a0b0c51b49671445583481ba601c22d2f52dfe475f12','bb4f2d494609b607ba82764cd59c4301ebbe492b682ff97ed8239ece0e2dee05','',2.0,NULL,0,NULL,0,'{}','');
INSERT INTO "nodes" VALUES('erdos-1',6,1,0,0,'e0ccd42a19ad0c4a6257d76e2ab366a5e72f57d7b4ba81155440d6ba21ba07fd','754ae4f0e07d6be279bf58c9b9a83ad174ee2877b58ae7ae6683b5fd58475c40','',3.0,NULL,0,NULL,0,'{}','');
INSERT INTO "nodes" VALUES('erdos-1',7,1,0,0,'c22000b80e19c73fa7b9d7db35cac6228e2b3c96c0a2fced2a7a5033dfc1689a','a1f1e17c82257c37ac6d75c24b4769b98869b0f9653d8c9189068e1f3531829d','',4.0,NULL,0,NULL,0,'{}','');
INSERT INTO "nodes" VALUES('first',2,0,0,1,'019e16eb838b12450ec2ecd34f174dcdcd285985b2017503f1ad4ef553ed72e7','875d6be742def334e92db1cda675e5289c4d11cb0e9ff6570c2a6836cdf7c12f','',2.0,NULL,0,NULL,0,'{}','');
INSERT INTO "nodes" VALUES('first',3,0,0,0,'ecd0f84ad34d27674952f01a4e7d5dc48ccf71e41c042acaa2d784507150e7de','c56a1aa66ffbe8741c7667792ed70c106395455d6c902499e1ed95e417a52f14','',3.0,NULL,0,NULL,0,'{}','');
INSERT INTO "nodes" VALUES('first',4,0,0,0,'3e654f2b4a79da728c49001b4df0658620dc9f741712ff48aab0777fd8916b05','8cf019f36d756c12b68b1d325a75f66e9bdea442c2ac89c12f32bd6c0bb125b8','',4.0,NULL,0,NULL,0,'{}','');
INSERT INTO "nodes" VALUES('first',5,1,0,1,'4e5764f341c00705c117a0b0c51b49671445583481ba601c22d2f52dfe475f12','bb4f2d494609b607ba82764cd59c4301ebbe492b682ff97ed8239ece0e2dee05','',2.0,NULL,0,NULL,0,'{}','');
INSERT INTO "nodes" VALUES('first',6,1,0,0,'e0ccd42a19ad0c4a6257d76e2ab366a5e72f57d7b4ba81155440d6ba21ba07fd','754ae4f0e07d6be279bf58c9b9a83ad174ee2877b58ae7ae6683b5fd58475c40','',3.0,NULL,0,NULL,0,'{}','');
INSERT INTO "nodes" VALUES('first',7,1,0,0,'c22000b80e19c73fa7b9d7db35cac6228e2b3c96c0a2fced2a7a5033dfc1689a','a1f1e17c82257c37ac6d75c24b4769b98869b0f9653d8c9189068e1f3531829d','',4.0,NULL,0,NULL,0,'{}','');
INSERT INTO "artifacts" VALUES('erdos-1','5feceb66ffc86f38d952786c6d696c79c2dbc239dd4e91b46729d73a27fb57e9',X'78013300003100310031');
INSERT INTO "rollouts" VALUES('erdos-1',0,0,0,0,0,'019e16eb838b12450ec2ecd34f174dcdcd285985b2017503f1ad4ef553ed72e7','stop',3,'{"valid":true,"reward":2.0,"objective":null,"reason":"","detail":"","reported":null,"output":"","seconds":0.0,"peak_bytes":0,"artifact_sha256":"","certificate":{"n":3.5}}',13.5);
INSERT INTO "rollouts" VALUES('erdos-1',0,0,1,0,0,'ecd0f84ad34d27674952f01a4e7d5dc48ccf71e41c042acaa2d784507150e7de','stop',3,'{"valid":true,"reward":3.0,"objective":null,"reason":"","detail":"","reported":null,"output":"","seconds":0.0,"peak_bytes":0,"artifact_sha256":"","certificate":{"n":3.5}}',13.5);
INSERT INTO "rollouts" VALUES('erdos-1',0,0,2,0,0,'3e654f2b4a79da728c49001b4df0658620dc9f741712ff48aab0777fd8916b05','stop',3,'{"valid":true,"reward":4.0,"objective":null,"reason":"","detail":"","reported":null,"output":"","seconds":0.0,"peak_bytes":0,"artifact_sha256":"","certificate":{"n":3.5}}',13.5);
INSERT INTO "rollouts" VALUES('erdos-1',0,1,0,0,1,'4e5764f341c00705c117a0b0c51b49671445583481ba601c22d2f52dfe475f12','stop',3,'{"valid":true,"reward":2.0,"objective":null,"reason":"","detail":"","reported":null,"output":"","seconds":0.0,"peak_bytes":0,"artifact_sha256":"","certificate":{"n":3.5}}',13.5);
INSERT INTO "rollouts" VALUES('erdos-1',0,1,1,0,1,'e0ccd42a19ad0c4a6257d76e2ab366a5e72f57d7b4ba81155440d6ba21ba07fd','stop',3,'{"valid":true,"reward":3.0,"objective":null,"reason":"","detail":"","reported":null,"output":"","seconds":0.0,"peak_bytes":0,"artifact_sha256":"","certificate":{"n":3.5}}',13.5);
INSERT INTO "rollouts" VALUES('erdos-1',0,1,2,0,1,'c22000b80e19c73fa7b9d7db35cac6228e2b3c96c0a2fced2a7a5033dfc1689a','stop',3,'{"valid":true,"reward":4.0,"objective":null,"reason":"","detail":"","reported":null,"output":"","seconds":0.0,"peak_bytes":0,"artifact_sha256":"","certificate":{"n":3.5}}',13.5);
INSERT INTO "rollouts" VALUES('first',0,0,0,0,0,'019e16eb838b12450ec2ecd34f174dcdcd285985b2017503f1ad4ef553ed72e7','stop',3,'{"valid":true,"reward":2.0,"objective":null,"reason":"","detail":"","reported":null,"output":"","seconds":0.0,"peak_bytes":0,"artifact_sha256":"","certificate":{"n":3.5}}',13.5);
INSERT INTO "rollouts" VALUES('first',0,0,1,0,0,'ecd0f84ad34d27674952f01a4e7d5dc48ccf71e41c042acaa2d784507150e7de','stop',3,'{"valid":true,"reward":3.0,"objective":null,"reason":"","detail":"","reported":null,"output":"","seconds":0.0,"peak_bytes":0,"artifact_sha256":"","certificate":{"n":3.5}}',13.5);
INSERT INTO "rollouts" VALUES('first',0,0,2,0,0,'3e654f2b4a79da728c49001b4df0658620dc9f741712ff48aab0777fd8916b05','stop',3,'{"valid":true,"reward":4.0,"objective":null,"reason":"","detail":"","reported":null,"output":"","seconds":0.0,"peak_bytes":0,"artifact_sha256":"","certificate":{"n":3.5}}',13.5);
INSERT INTO "rollouts" VALUES('first',0,1,0,0,1,'4e5764f341c00705c117a0b0c51b49671445583481ba601c22d2f52dfe475f12','stop',3,'{"valid":true,"reward":2.0,"objective":null,"reason":"","detail":"","reported":null,"output":"","seconds":0.0,"peak_bytes":0,"artifact_sha256":"","certificate":{"n":3.5}}',13.5);
INSERT INTO "rollouts" VALUES('first',0,1,1,0,1,'e0ccd42a19ad0c4a6257d76e2ab366a5e72f57d7b4ba81155440d6ba21ba07fd','stop',3,'{"valid":true,"reward":3.0,"objective":null,"reason":"","detail":"","reported":null,"output":"","seconds":0.0,"peak_bytes":0,"artifact_sha256":"","certificate":{"n":3.5}}',13.5);
INSERT INTO "rollouts" VALUES('first',0,1,2,0,1,'c22000b80e19c73fa7b9d7db35cac6228e2b3c96c0a2fced2a7a5033dfc1689a','stop',3,'{"valid":true,"reward":4.0,"objective":null,"reason":"","detail":"","reported":null,"output":"","seconds":0.0,"peak_bytes":0,"artifact_sha256":"","certificate":{"n":3.5}}',13.5);
INSERT INTO "rollouts" VALUES('erdos-1',1,0,0,1,0,'c6d643ba484f602e601b7f07c2cb4c0fcb733f281e8815f0519e20703d97dc53','stop',3,'{"valid":true,"reward":2.0,"objective":null,"reason":"","detail":"","reported":null,"output":"","seconds":0.0,"peak_bytes":0,"artifact_sha256":"","certificate":{"n":3.5}}',13.5);
INSERT INTO "samples" VALUES('erdos-1',1,0,0,X'010000000200000070110100',X'9A9999999999B9BF555555555555D5BF00000000000000C0',X'010001','a ⟦');
