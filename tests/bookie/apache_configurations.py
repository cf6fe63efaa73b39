"""Configurations that Apache's bookies start with: keys and values of published files, and of Apache's own tests.

BK_SERVER          the settings of Apache BookKeeper's conf/bk_server.conf that are in force
BK_SERVER_SHOWN    those that it shows in comments, for users to uncomment
PULSAR             the settings of Apache Pulsar's conf/bookkeeper.conf that are in force
STANDALONE         Pulsar's conf/standalone.conf, for a broker and a bookie: what the bookie reads, what is nearly the
                   name of a bookie's key, and what by its name could protect one
JUNIT              what every JUnit test of bookkeeper-server 4.18.0 starts a bookie with (TestBKConfiguration)
JUNIT_VALUES       values that its tests then set; each goes with JUNIT, and with JUNIT_COMPANIONS
JUNIT_DIRECTORIES  journal and ledgers in one directory: BookKeeperClusterTestCase
CORNERS            unusual values that Apache's bookies accept
"""

from __future__ import annotations

BK_SERVER = """\
bookiePort=3181
httpServerEnabled=false
httpServerPort=8080
httpServerClass=org.apache.bookkeeper.http.vertx.VertxHttpServer
journalDirectories=/tmp/bk-txn
ledgerDirectories=/tmp/bk-data
metadataServiceUri=zk+hierarchical://localhost:2181/ledgers
zkServers=localhost:2181
zkTimeout=10000
zkEnableSecurity=false
"""

BK_SERVER_SHOWN = """\
allowMultipleDirsUnderSameDiskPartition=false
listeningInterface=lo
advertisedAddress=
allowLoopback=false
useHostNameAsBookieID=false
useShortHostName=false
allowEphemeralPorts=false
enableLocalTransport=false
disableServerSocketBind=false
bookieDeathWatchInterval=1000
extraServerComponents=
numAddWorkerThreads=1
numReadWorkerThreads=8
numLongPollWorkerThreads=0
numJournalCallbackThreads=1
numHighPriorityWorkerThreads=8
maxPendingReadRequestsPerThread=10000
maxPendingAddRequestsPerThread=10000
requestTimerTickDurationMs=10
requestTimerNumTicks=1024
readOnlyModeEnabled=true
forceReadOnlyBookie=false
persistBookieStatusEnabled=false
serverTcpNoDelay=true
serverSockKeepalive=true
serverTcpLinger=0
byteBufAllocatorSizeInitial=65536
byteBufAllocatorSizeMin=65536
byteBufAllocatorSizeMax=1048576
nettyMaxFrameSizeBytes=5242880
bookieAuthProviderFactoryClass=null
permittedStartupUsers=
tlsProvider=OpenSSL
tlsClientAuthentication=true
tlsKeyStoreType=JKS
tlsKeyStore=null
tlsKeyStorePasswordPath=null
tlsTrustStoreType=null
tlsTrustStore=null
tlsTrustStorePasswordPath=null
journalDirectory=/tmp/bk-txn
journalFormatVersionToWrite=4
journalMaxSizeMB=2048
journalMaxBackups=5
journalPreAllocSizeMB=16
journalWriteBufferSizeKB=64
journalRemoveFromPageCache=true
journalSyncData=true
journalAdaptiveGroupWrites=true
journalMaxGroupWaitMSec=2
journalBufferedWritesThreshold=524288
journalAlignmentSize=512
journalBufferedEntriesThreshold=0
journalFlushWhenQueueEmpty=false
ledgerStorageClass=org.apache.bookkeeper.bookie.SortedLedgerStorage
indexDirectories=/tmp/bk-data
minUsableSizeForIndexFileCreation=1073741824
minUsableSizeForEntryLogCreation=
minUsableSizeForHighPriorityWrites=
flushInterval=10000
allowStorageExpansion=false
logSizeLimit=1073741824
entryLogFilePreallocationEnabled=true
flushEntrylogBytes=0
readBufferSizeBytes=512
writeBufferSizeBytes=65536
entryLogPerLedgerEnabled=false
numOfMemtableFlushThreads=8
entrylogMapAccessExpiryTimeInSeconds=300
maximumNumberOfActiveEntryLogs=500
compactionRate=1000
minorCompactionThreshold=0.2
minorCompactionInterval=3600
compactionMaxOutstandingRequests=100000
majorCompactionThreshold=0.8
majorCompactionInterval=86400
isThrottleByBytes=false
compactionRateByEntries=1000
compactionRateByBytes=1000000
useTransactionalCompaction=false
gcWaitTime=1000
gcOverreplicatedLedgerWaitTime=86400000
isForceGCAllowWhenNoSpace=false
verifyMetadataOnGC=false
diskUsageThreshold=0.95
diskUsageWarnThreshold=0.95
diskUsageLwmThreshold=0.90
diskCheckInterval=10000
skipListSizeLimit=67108864
skipListArenaChunkSize=4194304
skipListArenaMaxAllocSize=131072
openFileLimit=20000
fileInfoCacheInitialCapacity=
fileInfoMaxIdleTime=0
pageSize=8192
pageLimit=-1
dbStorage_writeCacheMaxSizeMb=512
dbStorage_readAheadCacheMaxSizeMb=256
dbStorage_readAheadCacheBatchSize=1000
dbStorage_rocksDB_blockCacheSize=268435456
dbStorage_rocksDB_writeBufferSizeMB=64
dbStorage_rocksDB_sstSizeInMB=64
dbStorage_rocksDB_blockSize=65536
dbStorage_rocksDB_bloomFilterBitsPerKey=10
dbStorage_rocksDB_numLevels=-1
dbStorage_rocksDB_numFilesInLevel0=4
dbStorage_rocksDB_maxSizeInLevel1MB=256
ledgerManagerFactoryClass=org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory
ledgerManagerType=hierarchical
allowShadedLedgerManagerFactoryClass=false
shadedLedgerManagerFactoryClassPrefix=dlshade.
zkLedgersRootPath=/ledgers
zkRetryBackoffStartMs=1000
zkRetryBackoffMaxMs=10000
zkRequestRateLimit=0
enableStatistics=true
enableTaskExecutionStats=false
statsProviderClass=org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider
prometheusStatsHttpPort=8000
prometheusStatsLatencyRolloverSeconds=60
codahaleStatsPrefix=
codahaleStatsOutputFrequencySeconds=60
statsExport=false
statsHttpPort=9002
autoRecoveryDaemonEnabled=false
digestType=CRC32
passwd=
enableDigestTypeAutodetection=true
ensemblePlacementPolicy=org.apache.bookkeeper.client.RackawareEnsemblePlacementPolicy
reppDnsResolverClass=org.apache.bookkeeper.net.ScriptBasedMapping
networkTopologyScriptFileName=
networkTopologyScriptNumberArgs=100
auditorPeriodicBookieCheckInterval=86400
auditorPeriodicCheckInterval=604800
auditorLedgerVerificationPercentage=0
lostBookieRecoveryDelay=0
rereplicationEntryBatchSize=10
openLedgerRereplicationGracePeriod=30
rwRereplicateBackoffMs=5000
"""

PULSAR = """\
bookiePort=3181
journalDirectory=data/bookkeeper/journal
minUsableSizeForIndexFileCreation=1073741824
advertisedAddress=
allowLoopback=false
bookieDeathWatchInterval=1000
flushInterval=60000
useHostNameAsBookieID=false
gcWaitTime=900000
gcOverreplicatedLedgerWaitTime=86400000
numAddWorkerThreads=0
numReadWorkerThreads=8
numHighPriorityWorkerThreads=8
maxPendingReadRequestsPerThread=2500
maxPendingAddRequestsPerThread=10000
readWorkerThreadsThrottlingEnabled=true
enableBusyWait=false
forceAllowCompaction=true
tlsCertFilesRefreshDurationSeconds=300
auditorPeriodicBookieCheckInterval=86400
rereplicationEntryBatchSize=100
stickyReadSEnabled=true
reorderReadSequenceEnabled=true
openLedgerRereplicationGracePeriod=30000
autoRecoveryDaemonEnabled=true
lostBookieRecoveryDelay=0
useV2WireProtocol=true
reppDnsResolverClass=org.apache.pulsar.zookeeper.ZkBookieRackAffinityMapping
serverTcpNoDelay=true
nettyMaxFrameSizeBytes=5253120
journalFormatVersionToWrite=5
journalMaxSizeMB=2048
journalMaxBackups=5
journalPreAllocSizeMB=16
journalWriteBufferSizeKB=64
journalRemoveFromPageCache=true
journalWriteData=true
journalSyncData=true
journalAdaptiveGroupWrites=true
journalMaxGroupWaitMSec=1
journalBufferedWritesThreshold=524288
numJournalCallbackThreads=8
journalAlignmentSize=4096
journalFlushWhenQueueEmpty=false
ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage
ledgerDirectories=data/bookkeeper/ledgers
auditorPeriodicCheckInterval=604800
openFileLimit=0
fileInfoFormatVersionToWrite=0
pageLimit=0
zkLedgersRootPath=/ledgers
logSizeLimit=1073741824
entryLogFilePreallocationEnabled=true
flushEntrylogBytes=33554432
readBufferSizeBytes=4096
writeBufferSizeBytes=65536
compactionRate=1000
minorCompactionThreshold=0.2
minorCompactionInterval=3600
compactionMaxOutstandingRequests=100000
majorCompactionThreshold=0.5
majorCompactionInterval=86400
isThrottleByBytes=false
compactionRateByEntries=1000
compactionRateByBytes=1000000
statsProviderClass=org.apache.bookkeeper.stats.prometheus.PrometheusMetricsProvider
prometheusStatsHttpPort=8000
readOnlyModeEnabled=true
diskCheckInterval=10000
metadataServiceUri=
zkServers=localhost:2181
zkTimeout=30000
zkEnableSecurity=false
httpServerEnabled=false
httpServerPort=8000
httpServerClass=org.apache.bookkeeper.http.vertx.VertxHttpServer
dbStorage_writeCacheMaxSizeMb=
dbStorage_readAheadCacheMaxSizeMb=
dbStorage_readAheadCacheBatchSize=1000
dbStorage_rocksDB_blockCacheSize=
dbStorage_rocksDB_writeBufferSizeMB=64
dbStorage_rocksDB_sstSizeInMB=64
dbStorage_rocksDB_blockSize=65536
dbStorage_rocksDB_bloomFilterBitsPerKey=10
dbStorage_rocksDB_numLevels=-1
dbStorage_rocksDB_numFilesInLevel0=4
dbStorage_rocksDB_maxSizeInLevel1MB=256
"""

STANDALONE = """\
metadataStoreUrl=
brokerServicePort=6650
webServicePort=8080
bindAddress=0.0.0.0
bindAddresses=
advertisedAddress=
haProxyProtocolEnabled=false
numIOThreads=
numOrderedExecutorThreads=8
numHttpServerThreads=
clusterName=standalone
maxMessageSizeCheckIntervalInSeconds=60
encryptionRequireOnProducer=false
metadataStoreBatchingMaxSizeKb=128
tlsEnabled=false
tlsCertRefreshCheckDurationSec=300
tlsCertificateFilePath=
tlsKeyFilePath=
tlsTrustCertsFilePath=
tlsAllowInsecureConnection=false
tlsProtocols=
tlsCiphers=
tlsRequireTrustedClientCertOnConnect=false
tlsProvider=
webServiceTlsProvider=Conscrypt
tlsEnabledWithKeyStore=false
tlsKeyStoreType=JKS
tlsKeyStore=
tlsKeyStorePassword=
tlsTrustStoreType=JKS
tlsTrustStore=
tlsTrustStorePassword=
brokerClientTlsEnabled=false
brokerClientTlsEnabledWithKeyStore=false
brokerClientSslProvider=
brokerClientTlsKeyStoreType=JKS
brokerClientTlsKeyStorePassword=
brokerClientTlsTrustStoreType=JKS
proxyRoles=
authenticateOriginalAuthData=false
authenticationEnabled=false
authenticationProviders=
authorizationEnabled=false
authorizationProvider=org.apache.pulsar.broker.authorization.PulsarAuthorizationProvider
authorizationAllowWildcardsMatching=false
superUserRoles=
brokerClientAuthenticationPlugin=
brokerClientAuthenticationParameters=
athenzDomainNames=
basicAuthConf=
tokenSecretKey=
tokenAuthClaim=
saslJaasClientAllowedIds=
saslJaasServerSectionName=
saslJaasBrokerSectionName=
bookkeeperClientAuthenticationPlugin=
bookkeeperClientTimeoutInSeconds=30
bookkeeperClientNumWorkerThreads=
bookkeeperClientSpeculativeReadTimeoutInMillis=0
bookkeeperNumberOfChannelsPerBookie=16
bookkeeperClientHealthCheckEnabled=true
bookkeeperClientHealthCheckIntervalSeconds=60
bookkeeperClientHealthCheckQuarantineTimeInSeconds=1800
bookkeeperClientQuarantineRatio=1.0
bookkeeperClientMinNumRacksPerWriteQuorum=1
bookkeeperClientEnforceMinNumRacksPerWriteQuorum=false
bookkeeperClientReorderReadSequenceEnabled=false
bookkeeperTLSProviderFactoryClass=org.apache.bookkeeper.tls.TLSContextFactory
bookkeeperTLSClientAuthentication=false
bookkeeperTLSKeyFileType=PEM
bookkeeperTLSTrustCertTypes=PEM
bookkeeperTLSKeyStorePasswordPath=
bookkeeperDiskWeightBasedPlacementEnabled=false
bookkeeperExplicitLacIntervalInMills=0
bookkeeperUseV2WireProtocol=true
managedLedgerDigestType=CRC32C
managedLedgerReadEntryTimeoutSeconds=0
managedLedgerAddEntryTimeoutSeconds=0
managedLedgerPrometheusStatsLatencyRolloverSeconds=60
loadBalancerEnabled=false
keepAliveIntervalSeconds=30
exposePublisherStats=true
globalZookeeperServers=
ledgerStorageClass=org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage
nettyMaxFrameSizeBytes=5253120
dbStorage_writeCacheMaxSizeMb=
dbStorage_readAheadCacheMaxSizeMb=
dbStorage_readAheadCacheBatchSize=1000
flushInterval=60000
dbStorage_rocksDB_blockCacheSize=
dbStorage_rocksDB_writeBufferSizeMB=4
dbStorage_rocksDB_sstSizeInMB=4
dbStorage_rocksDB_blockSize=4096
dbStorage_rocksDB_bloomFilterBitsPerKey=10
dbStorage_rocksDB_numLevels=-1
dbStorage_rocksDB_numFilesInLevel0=4
dbStorage_rocksDB_maxSizeInLevel1MB=256
journalMaxGroupWaitMSec=1
journalSyncData=false
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.99
allowLoopback=true
gcWaitTime=300000
transactionLogBatchedWriteMaxSize=4194304
packagesManagementLedgerRootPath=/ledgers
zooKeeperSessionTimeoutMillis=-1
zookeeperServers=
configurationStoreServers=
sslFactoryPlugin=org.apache.pulsar.common.util.DefaultPulsarSslFactory
sslFactoryPluginParams=
"""

JUNIT = {
    "tlsEnabledProtocols": "TLSv1.2,TLSv1.1",
    "journalFlushWhenQueueEmpty": "true",
    "journalFormatVersionToWrite": "5",
    "allowEphemeralPorts": "false",
    "gcWaitTime": "1000",
    "diskUsageThreshold": "0.999",
    "diskUsageWarnThreshold": "0.99",
    "allocatorPoolingPolicy": "UnpooledHeap",
    "dbStorage_writeCacheMaxSizeMb": "4",
    "dbStorage_readAheadCacheMaxSizeMb": "4",
    "zkRetryBackoffMaxRetries": "0",
    "listeningInterface": "lo",
    "allowLoopback": "true",
}

_BOOKIE = "org.apache.bookkeeper.bookie."
JUNIT_VALUES = {
    "advertisedAddress": ("10.0.0.1", "192.168.1.100", "localhost", "unknown"),
    "allocatorLeakDetectionPolicy": ("advanCed", "zazaza"),
    "allowEphemeralPorts": ("true",),
    "allowLoopback": ("false",),
    "allowStorageExpansion": ("true",),
    "auditorPeriodicBookieCheckInterval": ("0", "1", "2", "9223372036854775807"),
    "auditorPeriodicCheckInterval": ("0", "1"),
    "autoRecoveryDaemonEnabled": ("true",),
    "bookieId": ("barfoo",),
    "bookkeeper.format": ("true",),
    "clientConnectTimeoutMillis": ("500",),
    "compactionRateByBytes": ("1",),
    "dbStorage_directIOEntryLogger": ("true",),
    "dbStorage_maxThrottleTimeMs": ("1000",),
    "dbStorage_readAheadCacheMaxSizeMb": ("16",),
    "dbStorage_writeCacheMaxSizeMb": ("1", "4"),
    "disableServerSocketBind": ("false",),
    "diskCheckInterval": ("100", "500", "1000", "2147483647"),
    "diskUsageLwmThreshold": ("0.8", "0.9", "0.94"),
    "diskUsageThreshold": ("0.999", "0.9999"),
    "diskUsageWarnThreshold": ("0", "0.9", "0.99"),
    "enableLocalTransport": ("true",),
    "entryLocationCompactionInterval": ("550", "3600"),
    "entryLogFilePreallocationEnabled": ("false", "true"),
    "entryLogPerLedgerEnabled": ("false", "true"),
    "entrylogMapAccessExpiryTimeInSeconds": ("1",),
    "extraServerComponents": ("test1,test2,test3",),
    "fileInfoFormatVersionToWrite": ("0", "1"),
    "flushEntrylogBytes": ("0", "25000", "10000000"),
    "flushInterval": ("1", "100", "60000", "999999999"),
    "forceAllowCompaction": ("true",),
    "forceReadOnlyBookie": ("false", "true"),
    "gcWaitTime": ("100", "500", "60000", "100000", "999999"),
    "httpServerEnabled": ("false", "true"),
    "isForceGCAllowWhenNoSpace": ("false", "true"),
    "isThrottleByBytes": ("true",),
    "journalAdaptiveGroupWrites": ("false",),
    "journalBufferedEntriesThreshold": ("10",),
    "journalBufferedWritesThreshold": ("1",),
    "journalMaxBackups": ("0", "2"),
    "journalMaxMemorySizeMb": ("1",),
    "journalMaxSizeMB": ("1",),
    "journalPageCacheFlushIntervalMSec": ("5000",),
    "journalReuseFiles": ("true",),
    "journalSyncData": ("false", "true"),
    "journalWriteData": ("false", "true"),
    "ledgerManagerFactoryClass": ("org.apache.bookkeeper.meta.FlatLedgerManagerFactory",),
    "ledgerStorageClass": (
        _BOOKIE + "InterleavedLedgerStorage",
        _BOOKIE + "SortedLedgerStorage",
        _BOOKIE + "storage.ldb.DbLedgerStorage",
        _BOOKIE + "SlowInterleavedLedgerStorage",
        _BOOKIE + "SlowSortedLedgerStorage",
        _BOOKIE + "LedgerCacheTest$FlushTestSortedLedgerStorage",
        _BOOKIE + "storage.ldb.DbLedgerStorageWriteCacheTest$MockedDbLedgerStorage",
        "org.apache.bookkeeper.client.BookKeeperClientTestsWithBookieErrors$MockSortedLedgerStorage",
    ),
    "lockReleaseOfFailedLedgerGracePeriod": ("64",),
    "logSizeLimit": ("1024", "2048", "4108", "10240", "102400", "2000000", "2097152", "2147483647"),
    "lostBookieRecoveryDelay": ("1800",),
    "majorCompactionInterval": ("-1", "0", "43200"),
    "majorCompactionMaxTimeMillis": ("1", "5000"),
    "majorCompactionThreshold": ("0", "0.5", "0.7"),
    "maxAddsInProgressLimit": ("0", "5"),
    "maximumNumberOfActiveEntryLogs": ("5", "20"),
    "maxPendingAddRequestsPerThread": ("1",),
    "maxPendingReadRequestsPerThread": ("1",),
    "maxReadsInProgressLimit": ("0", "5"),
    "metadataServiceUri": (
        "zk+null://127.0.0.1:2181/ledgers",
        "zk+flat://127.0.0.1:2181/ledgers",
        "zk+longhierarchical://127.0.0.1:2181/test/ledgers",
        "zk://newserver:2181/ledgers",
    ),
    "minorCompactionInterval": ("-1", "0", "1", "500", "900"),
    "minorCompactionMaxTimeMillis": ("1", "150", "5000"),
    "minorCompactionThreshold": ("0", "0.1", "0.20000000298023224", "0.699999988079071"),
    "minUsableSizeForEntryLogCreation": ("-9223372036854775808", "1", "9223372036854775807"),
    "minUsableSizeForHighPriorityWrites": ("-9223372036854775808", "1", "9223372036854775807"),
    "minUsableSizeForIndexFileCreation": ("1", "5120", "9223372036854775807"),
    "numAddWorkerThreads": ("0",),
    "numReadWorkerThreads": ("0", "1", "2"),
    "openFileLimit": ("1", "200", "999", "999999"),
    "openLedgerRereplicationGracePeriod": ("3000",),
    "pageLimit": ("1", "2", "3", "10"),
    "pageSize": ("1024", "4096"),
    "persistBookieStatusEnabled": ("true",),
    "readOnlyModeEnabled": ("false", "true"),
    "readOnlyModeOnAnyDiskFullEnabled": ("false",),
    "rwRereplicateBackoffMs": ("100", "500"),
    "saslJaasClientAllowedIds": (".*hd.*",),
    "serverTcpKeepIdle": ("-1", "0", "2147483647"),
    "skipListArenaMaxAllocSize": ("0",),
    "skipListSizeLimit": ("1000000", "4194304"),
    "skipReplayJournalInvalidRecord": ("true",),
    "sortedLedgerStorageEnabled": ("false", "true"),
    "test.slowStorage.addDelay": ("1",),
    "tlsClientAuthentication": ("false", "true"),
    "tlsKeyStorePasswordPath": ("badpassword",),
    "tlsKeyStoreType": ("JKS", "PEM", "PKCS12"),
    "useHostNameAsBookieID": ("false", "true"),
    "useShortHostName": ("true",),
    "useTransactionalCompaction": ("true",),
    "verifyMetadataOnGC": ("true",),
    "zkLedgersRootPath": ("/path/to/ledgers",),
    "zkServers": ("127.0.0.1",),
    "zkTimeout": ("4000", "24000"),
}
JUNIT_COMPANIONS = {
    "diskUsageLwmThreshold": {"diskUsageThreshold": "0.95", "diskUsageWarnThreshold": "0.9"},
    "gcWaitTime": {"minorCompactionInterval": "120000", "majorCompactionInterval": "240000"},
}
"""What a test sets together with the key."""

CORNERS = {
    "auditorLedgerVerificationPercentage": ("-1", "101"),
    "auditorPeriodicBookieCheckInterval": ("-9223372036854775808",),
    "compactionMaxOutstandingRequests": ("0", "-1", "2147483647"),
    "compactionRate": ("-1",),
    "compactionRateByBytes": ("2147483647", "-1"),
    "compactionRateByEntries": ("2147483647", "-1"),
    "dbStorage_readAheadCacheBatchBytesSize": ("-5", "0"),
    "dbStorage_readAheadCacheBatchSize": ("0", "-1"),
    "dbStorage_readAheadCacheMaxSizeMb": ("0", "-1"),
    "dbStorage_rocksDB_blockCacheSize": ("0", "1024"),
    "dbStorage_rocksDB_blockSize": ("0", "1073741824"),
    "dbStorage_rocksDB_bloomFilterBitsPerKey": ("-1", "1000"),
    "dbStorage_rocksDB_writeBufferSizeMB": ("0",),
    "dbStorage_writeCacheMaxSizeMb": ("0", "-1"),
    "diskUsageLwmThreshold": ("0", "-1"),
    "diskUsageWarnThreshold": ("-0.5",),
    "entrylogMapAccessExpiryTimeInSeconds": ("0",),
    "flushEntrylogBytes": ("-1", "-9223372036854775808"),
    "flushInterval": ("0", "-1"),
    "gcOverreplicatedLedgerWaitTime": ("-9223372036854775808", "9223372036854775807"),
    "gcWaitTime": ("0x3E8",),
    "journalAlignmentSize": ("4194304",),
    "journalBufferedEntriesThreshold": ("-1", "9223372036854775807"),
    "journalBufferedWritesThreshold": ("0", "-1"),
    "journalMaxBackups": ("-1",),
    "journalMaxGroupWaitMSec": ("-1", "9223372036854775807"),
    "journalMaxSizeMB": ("0", "-1"),
    "journalPageCacheFlushIntervalMSec": ("0",),
    "journalPreAllocSizeMB": ("2049",),
    "lockReleaseOfFailedLedgerGracePeriod": ("0", "-1"),
    "logSizeLimit": ("0",),
    "lostBookieRecoveryDelay": ("-1",),
    "majorCompactionMaxTimeMillis": ("-9223372036854775808",),
    "majorCompactionThreshold": ("1", "1.0", "-7"),
    "maxAddsInProgressLimit": ("-1",),
    "maxBatchReadSize": ("0", "9223372036854775807"),
    "maximumNumberOfActiveEntryLogs": ("0",),
    "maxPendingReadRequestsPerThread": ("0", "-1"),
    "maxReadsInProgressLimit": ("-1",),
    "nettyMaxFrameSizeBytes": ("512", "2147483647"),
    "numReadWorkerThreads": ("100000", "-1"),
    "openFileLimit": ("-1", "0"),
    "openLedgerRereplicationGracePeriod": ("-1",),
    "pageLimit": ("0", "-2147483648"),
    "pageSize": ("16", "100", "16777216"),
    "replicationRateByBytes": ("0", "-2147483648"),
    "rwRereplicateBackoffMs": ("0",),
    "skipListSizeLimit": ("0", "-1"),
    "waitTimeoutOnResponseBackpressureMs": ("0", "-9223372036854775808"),
    "zkTimeout": ("0", "100", "2147483647"),
}


def junit_cases() -> list[tuple[str, str, dict[str, str]]]:
    """Return (key, value, the whole configuration) of each value that Apache's tests set, and of each corner."""
    cases = []
    for table in (JUNIT_VALUES, CORNERS):
        for key, values in table.items():
            for value in values:
                cases.append((key, value, {**JUNIT, **JUNIT_COMPANIONS.get(key, {}), key: value}))
    return cases
