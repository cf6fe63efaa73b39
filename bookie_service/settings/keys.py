"""The names of all configuration keys: Apache's (4.17 and 4.18, including deprecated ones), and ours.

A key that is in neither list is a mistake. `configuration` defines which of Apache's keys are served, and how.
"""

from __future__ import annotations

_SERVER_KEYS = """
    advertisedAddress allocatorExitOnOutOfMemory allocatorLeakDetectionPolicy allocatorOutOfMemoryPolicy
    allocatorPoolingConcurrency allocatorPoolingPolicy allowEphemeralPorts allowLoopback
    allowMultipleDirsUnderSameDiskPartition allowShadedLedgerManagerFactoryClass allowStorageExpansion
    auditorAcquireConcurrentOpenLedgerOperationsTimeOutMSec auditorLedgerVerificationPercentage
    auditorMaxNumberOfConcurrentOpenLedgerOperations auditorPeriodicBookieCheckInterval auditorPeriodicCheckInterval
    auditorPeriodicPlacementPolicyCheckInterval auditorReplicasCheckInterval authorizedRoles autoRecoveryDaemonEnabled
    bookieAddressResolverEnabled bookieAuthProviderFactoryClass bookieDeathWatchInterval bookieId bookiePort
    byteBufAllocatorSizeInitial byteBufAllocatorSizeMax byteBufAllocatorSizeMin clientAuthProviderFactoryClass
    closeChannelOnResponseTimeout codahaleStatsCSVEndpoint codahaleStatsGraphiteEndpoint codahaleStatsJmxEndpoint
    codahaleStatsOutputFrequencySeconds codahaleStatsPrefix codahaleStatsSlf4jEndpoint compactionMaxOutstandingRequests
    compactionRate compactionRateByBytes compactionRateByEntries dataIntegrityChecking dataIntegrityStampMissingCookies
    dbStorage_directIOEntryLogger dbStorage_directIOEntryLoggerMaxFdCacheTimeSeconds
    dbStorage_directIOEntryLoggerReadBufferSizeMb dbStorage_directIOEntryLoggerReadBufferSizeMB
    dbStorage_directIOEntryLoggerTotalReadBufferSizeMb dbStorage_directIOEntryLoggerTotalReadBufferSizeMB
    dbStorage_directIOEntryLoggerTotalWriteBufferSizeMb dbStorage_directIOEntryLoggerTotalWriteBufferSizeMB
    dbStorage_maxThrottleTimeMs dbStorage_readAheadCacheBatchBytesSize dbStorage_readAheadCacheBatchSize
    dbStorage_readAheadCacheMaxSizeMb dbStorage_rocksDB_blockCacheSize dbStorage_rocksDB_blockSize
    dbStorage_rocksDB_bloomFilterBitsPerKey dbStorage_rocksDB_checksum_type dbStorage_rocksDB_format_version
    dbStorage_rocksDB_logLevel dbStorage_rocksDB_logPath dbStorage_rocksDB_lz4CompressionEnabled
    dbStorage_rocksDB_maxSizeInLevel1MB dbStorage_rocksDB_numFilesInLevel0 dbStorage_rocksDB_numLevels
    dbStorage_rocksDB_sstSizeInMB dbStorage_rocksDB_writeBufferSizeMB dbStorage_writeCacheMaxSizeMb defaultRocksdbConf
    desiredNumZonesPerWriteQuorum digestType disableServerSocketBind diskCheckInterval diskUsageLwmThreshold
    diskUsageThreshold diskUsageWarnThreshold enableBusyWait enableDigestTypeAutodetection enableHealthCheck
    enableLocalTransport enableStatistics enableTaskExecutionStats enforceMinNumFaultDomainsForWrite
    enforceMinNumRacksPerWriteQuorum enforceStrictZoneawarePlacement ensemblePlacementPolicy
    ensembleRandomReadReordering entryFormatterClass entryLocationCompactionInterval entryLocationRocksdbConf
    entryLogFilePreallocationEnabled entrylogMapAccessExpiryTimeInSeconds entryLogPerLedgerCounterLimitsMultFactor
    entryLogPerLedgerEnabled exposeDefaultJVMMetrics extraServerComponents fileInfoCacheInitialCapacity
    fileInfoFormatVersionToWrite fileInfoMaxIdleTime flushEntrylogBytes flushInterval forceAllowCompaction
    forceReadOnlyBookie gcEntryLogMetadataCacheEnabled gcEntryLogMetadataCachePath gcMetadataOpRateLimit
    gcOverreplicatedLedgerMaxConcurrentRequests gcOverreplicatedLedgerWaitTime gcWaitTime httpServerClass
    httpServerEnabled httpServerHost httpServerKeyStorePassword httpServerKeyStorePath httpServerPort
    httpServerTlsEnable httpServerTrustStorePassword httpServerTrustStorePath ignoreExtraServerComponentsStartupFailures
    ignoreLocalNodeInPlacementPolicy indexDirectories inFlightReadEntryNumInLedgerChecker isForceGCAllowWhenNoSpace
    isThrottleByBytes journalAdaptiveGroupWrites journalAlignmentSize journalBufferedEntriesThreshold
    journalBufferedWritesThreshold journalChannelProvider journalDirectories journalDirectory journalFlushWhenQueueEmpty
    journalFormatVersionToWrite journalMaxBackups journalMaxGroupWaitMSec journalMaxMemorySizeMb journalMaxSizeMB
    journalPageCacheFlushIntervalMSec journalPreAllocSizeMB journalQueueSize journalRemoveFromPageCache
    journalReuseFiles journalSyncData journalWriteBufferSizeKB journalWriteData ledgerDirectories ledgerIdFormatterClass
    ledgerManagerFactoryClass ledgerManagerFactoryDisableClassCheck ledgerManagerType ledgerMetadataRocksdbConf
    ledgerMetadataVersion ledgerStorageClass limitStatsLogging listeningInterface localConsistencyCheckOnStartup
    localScrubInterval localScrubRateLimit lockReleaseOfFailedLedgerGracePeriod logSizeLimit lostBookieRecoveryDelay
    majorCompactionInterval majorCompactionMaxTimeMillis majorCompactionThreshold maxAddsInProgressLimit
    maxBatchReadSize maximumNumberOfActiveEntryLogs maxOperationNumbersInSingleRocksdbWriteBatch
    maxPendingAddRequestsPerThread maxPendingReadRequestsPerThread maxReadsInProgressLimit metadataServiceUri
    metastoreImplClass metastoreMaxEntriesPerScan minNumRacksPerWriteQuorum minNumZonesPerWriteQuorum
    minorCompactionInterval minorCompactionMaxTimeMillis minorCompactionThreshold minUsableSizeForEntryLogCreation
    minUsableSizeForHighPriorityWrites minUsableSizeForIndexFileCreation nettyMaxFrameSizeBytes
    networkTopologyScriptFileName networkTopologyScriptNumberArgs numAddWorkerThreads numHighPriorityWorkerThreads
    numJournalCallbackThreads numLongPollWorkerThreads numOfMemtableFlushThreads numReadWorkerThreads openFileLimit
    openLedgerRereplicationGracePeriod pageLimit pageSize passwd permittedStartupUsers persistBookieStatusEnabled
    preserveMdcForTaskExecution prometheusStatsHttpAddress prometheusStatsHttpEnable prometheusStatsHttpPort
    prometheusStatsLatencyRolloverSeconds readBufferSizeBytes readOnlyModeEnabled readOnlyModeOnAnyDiskFullEnabled
    readWorkerThreadsThrottlingEnabled registrationManagerClass repairedPlacementPolicyNotAdheringBookieEnabled
    replicationRateByBytes reppDisableDurabilityFeatureName reppDisallowBookiePlacementInRegionFeatureName
    reppDnsResolverClass reppEnableDurabilityEnforcementInReplace reppEnableValidation reppMinimumRegionsForDurability
    reppRegionsToWrite requestTimerNumTicks requestTimerTickDurationMs rereplicationEntryBatchSize
    rwRereplicateBackoffMs sanityCheckMetricsEnabled saslJaasAuditorSectionName saslJaasBookieSectionName
    saslJaasClientAllowedIds saslJaasClientSectionName serverNumAcceptorThreads serverNumIOThreads serverSockKeepalive
    serverTcpKeepCnt serverTcpKeepIdle serverTcpKeepIntvl serverTcpLinger serverTcpNoDelay
    serverWriteBufferHighWaterMark serverWriteBufferLowWaterMark shadedLedgerManagerFactoryClassPrefix
    skipListArenaChunkSize skipListArenaMaxAllocSize skipListSizeLimit skipReplayJournalInvalidRecord
    sortedLedgerStorageEnabled statsProviderClass stickyReadsEnabled stickyReadSEnabled
    storeSystemTimeAsLedgerCreationTime storeSystemTimeAsLedgerUnderreplicatedMarkTime
    tlsCertFilesRefreshDurationSeconds tlsCertificatePath tlsClientAuthentication tlsEnabledCipherSuites
    tlsEnabledProtocols tlsKeyStore tlsKeyStorePasswordPath tlsKeyStoreType tlsProvider tlsProviderFactoryClass
    tlsTrustStore tlsTrustStorePasswordPath tlsTrustStoreType underreplicatedLedgerRecoveryGracePeriod
    useHostNameAsBookieID useShortHostName useTargetEntryLogSizeForGc useTransactionalCompaction verifyMetadataOnGC
    waitTimeoutOnResponseBackpressureMs writeBufferSizeBytes zkEnableSecurity zkLedgersRootPath
    zkReplicationTaskRateLimit zkRequestRateLimit zkRetryBackoffMaxMs zkRetryBackoffMaxRetries zkRetryBackoffStartMs
    zkServers zkTimeout
    """
_CLIENT_KEYS = """
    addEntryQuorumTimeoutSec addEntryTimeoutSec batchReadEnabled bookieConnectionErrorQuarantineEnabled
    bookieErrorThresholdPerInterval bookieFailureHistoryExpirationMSec bookieHealthCheckEnabled
    bookieHealthCheckIntervalSeconds bookieMaxMultipleForWeightBasedPlacement bookieQuarantineRatio
    bookieQuarantineTimeSeconds clientConnectBookieUnavailableLogThrottling clientConnectTimeoutMillis clientKeyStore
    clientKeyStorePasswordPath clientKeyStoreType clientReceiveBufferSize clientRole clientSendBufferSize
    clientSockKeepalive clientTcpNoDelay clientTcpUserTimeoutMillis clientTrustStore clientTrustStorePasswordPath
    clientTrustStoreType clientWriteBufferHighWaterMark clientWriteBufferLowWaterMark delayEnsembleChange
    disableEnsembleChangeFeatureName diskWeightBasedPlacementEnabled enableBookieAddressTracking
    enableBookieFailureTracking enableParallelRecoveryRead explicitLacInterval firstSpeculativeReadLACTimeout
    firstSpeculativeReadTimeout getBookieInfoIntervalSeconds getBookieInfoRetryIntervalSeconds getBookieInfoTimeoutSecs
    maxNumEnsembleChanges maxSpeculativeReadLACTimeout maxSpeculativeReadTimeout nettyUsePooledBuffers
    networkTopologyStabilizePeriodSeconds numChannelsPerBookie numIOThreads numWorkerThreads opportunisticStriping
    pcbcTimeoutTimerNumTicks pcbcTimeoutTimerTickDurationMs readEntryTimeoutSec readReorderThresholdPendingRequests
    readTimeout recoveryBatchReadEnabled recoveryReadBatchSize registrationClientClass reorderReadSequenceEnabled
    speculativeReadLACTimeoutBackoffMultiplier speculativeReadTimeout speculativeReadTimeoutBackoffMultiplier
    startTLSTimeoutSecs taskExecutionWarnTimeMicros tcpKeepCnt tcpKeepIdle tcpKeepIntvl throttle
    timeoutMonitorIntervalSec timeoutTaskIntervalMillis timeoutTimerNumTicks timeoutTimerTickDurationMs
    tlsHostnameVerificationEnabled useHostnameResolveLocalNodePlacementPolicy useV2WireProtocol
    waitTimeoutOnBackpressureMs
    """
APACHE_KEYS = frozenset((_SERVER_KEYS + _CLIENT_KEYS).split())
"""The keys that Apache's bookie reads, and those that the client of its autorecovery reads from the same file."""

APACHE_PREFIXES = ("dlog.", "storage.", "storageserver.")
"""Families of the stream and table service, which shares Apache's file."""

OWN_KEYS = frozenset(
    {
        "authorizationRulesFile",
        "allowAuthDisabled",
        "authenticationRequired",
        "authenticationTimeoutMs",
        "connectionIdleTimeoutMs",
        "connectionsReservedForBookies",
        "frameTimeoutMs",
        "gcDeletedShareMax",
        "httpServerAccessFile",
        "httpServerAllowedHosts",
        "httpServerCertificatePath",
        "httpServerIdleTimeoutMs",
        "httpServerKeyStorePasswordPath",
        "httpServerMaxBodyBytes",
        "httpServerMaxConnections",
        "httpServerMaxHeadBytes",
        "httpServerMaxTlsHandshakes",
        "httpServerTlsHandshakeTimeoutMs",
        "httpServerTrustStorePasswordPath",
        "localReadsEnabled",
        "logFormat",
        "logLevel",
        "longPollTimeoutMaxMs",
        "maxConnections",
        "maxConnectionsPerAddress",
        "maxEntryLists",
        "maxEntryListsPerAddress",
        "maxLongPolls",
        "maxLongPollsPerAddress",
        "maxNewLedgersPerSecondPerAddress",
        "maxTlsHandshakes",
        "maxTlsHandshakesPerAddress",
        "maxUnauthenticatedConnections",
        "maxUnauthenticatedConnectionsPerAddress",
        "newLedgersBurstPerAddress",
        "permittedFileGroup",
        "permittedLocalReadUsers",
        "receiveBuffersMaxBytes",
        "replyBuffersMaxBytes",
        "rereplicationInFlightMaxBytes",
        "saslJaasConfig",
        "tlsHandshakeTimeoutMs",
        "tlsRequired",
        "tracingEnabled",
        "zkFurtherAcls",
        "zookeeper.client.secure",
        "zookeeper.clientCnxnSocket",
        "zookeeper.sasl.client",
        "zookeeper.sasl.client.username",
        "zookeeper.sasl.clientconfig",
        "zookeeper.ssl.ciphersuites",
        "zookeeper.ssl.enabledProtocols",
        "zookeeper.ssl.hostnameVerification",
        "zookeeper.ssl.keyStore.location",
        "zookeeper.ssl.keyStore.passwordPath",
        "zookeeper.ssl.keyStore.type",
        "zookeeper.ssl.trustStore.location",
        "zookeeper.ssl.trustStore.passwordPath",
        "zookeeper.ssl.trustStore.type",
    }
)
"""Keys that only this bookie has, and Java system properties that are keys here."""
